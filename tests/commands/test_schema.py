"""Every JSON document has a schema that `fa-tune schema` prints, and they can refuse one.  That
documents fit is seen wherever a test has a command print one (`tests.commands.console`)."""

from __future__ import annotations

import ast
import re

import pytest
from jsonschema import Draft202012Validator, ValidationError

from fa_tune.commands.documents import DOCUMENTS
from tests.commands.console import Console, validator
from tests.project_files import ROOT, project_files

DOCUMENT = re.compile(r"fa-tune-[a-z-]+-\d+")
NOT_PRINTED = {  # files of our own, which only fa-tune reads
    "fa-tune-decisions-1",
    "fa-tune-export-1",
    "fa-tune-page-2",
}
NAMES = sorted(name for name in DOCUMENTS if DOCUMENT.fullmatch(name))


def test_every_document_has_a_schema() -> None:
    named = {
        node.value
        for path in project_files()
        if path.startswith("fa_tune/") and path.endswith(".py")
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and DOCUMENT.fullmatch(node.value)
    }
    assert named == {*NAMES, *NOT_PRINTED}


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_schemas_and_can_refuse(name: str) -> None:
    found = validator(name)
    for document in ({"schema": name}, {"schema": "fa-tune-other-1"}, {}):
        with pytest.raises(ValidationError):
            found.validate(document)


def test_a_schema_is_printed_by_its_name_and_refuses_other_fields(console: Console) -> None:
    for name in ("fa-tune-doctor-1", "doctor"):
        printed = console("schema", name)
        assert printed.status == 0
        Draft202012Validator(printed.json).validate(
            {"schema": "fa-tune-doctor-1", "ok": True, "checks": []}
        )
    assert console("schema", "registry").out == (ROOT / "docs/registry.schema.json").read_text()
    refused = console("schema", "fa-tune-nothing-1")
    assert (refused.status, refused.out) == (2, "")
    assert "fa-tune-search-1" in refused.err
    doctor = {"schema": "fa-tune-doctor-1", "ok": True, "checks": []}
    validator("fa-tune-doctor-1").validate(doctor)
    with pytest.raises(ValidationError, match="colour"):
        validator("fa-tune-doctor-1").validate(doctor | {"colour": "red"})
