"""The pretended machine of tests/tune serves here, too."""

from tests.tune.conftest import _one_family as _one_family
from tests.tune.conftest import world as world
