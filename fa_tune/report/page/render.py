"""A page as text: the frame of HTML, its tables, and the figures with the library that draws
them.  The file makes no request: a policy inside it forbids any."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fa_tune import __version__
from fa_tune.core.files import save_file
from fa_tune.report.page.source import FACTS, Source

if TYPE_CHECKING:
    from fa_tune.report.page.sections import Contents

SCHEMA = "fa-tune-page-2"
_EXPORT = "window.vegaEmbed = vegaEmbed;"


def write_page(path: Path, sources: Sequence[Source], against: Sequence[Source] = ()) -> None:
    """Write the page of `sources` to a file, compared with `against`; raises StorageError."""
    save_file(path, page(sources, against).encode())


def page(sources: Sequence[Source], against: Sequence[Source] = ()) -> str:
    """The page as HTML."""
    from fa_tune.report.page.sections import contents_of  # late, like what draws: slow to load

    return rendered(contents_of(sources, against), sources, against)


def rendered(contents: Contents, sources: Sequence[Source], against: Sequence[Source] = ()) -> str:
    """Contents as HTML."""
    import vl_convert

    document = {
        "schema": SCHEMA,
        "sources": [source.name for source in sources],
        "sections": {section.name: section.records for section in contents.sections},
        "figures": {section.name: section.spec for section in contents.sections if section.spec},
    }
    return filled(
        "page.html",
        document,
        contents=contents,
        facts_named=FACTS,
        version=__version__,
        sources=sources,
        against=against,
        script=_text("page.js"),
        library=vl_convert.javascript_bundle(_EXPORT).replace("</script", "<\\/script"),
    )


def filled(template: str, document: dict[str, Any], **values: Any) -> str:
    """A page of a template, with the style that all share and its data as JSON that no parser of
    HTML ends early."""
    import jinja2  # late: slow to load

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    data = json.dumps(document, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    data = data.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    page = environment.from_string(_text(template))
    return str(page.render(**values, style=_text("page.css"), document=data))


def _text(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
