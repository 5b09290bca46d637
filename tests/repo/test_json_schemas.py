"""docs/schemas has the schema of every JSON document, and they can refuse one.  That documents fit
is seen wherever a test has a command print one (`tests.commands.console`)."""

from __future__ import annotations

import ast
import json
import re

import pytest
from jsonschema import Draft202012Validator, ValidationError

import json_documents
import json_schemas
from tests.commands.console import validator
from tests.project_files import ROOT, project_files

DOCUMENT = re.compile(r"fa-tune-[a-z-]+-\d+")
NOT_PRINTED = {  # files of our own, which only fa-tune reads
    "fa-tune-decisions-1",
    "fa-tune-export-1",
    "fa-tune-page-1",
}
NAMES = [json_documents.name_of(document) for document in json_documents.DOCUMENTS]


def test_the_published_schemas_are_those_of_the_types() -> None:
    made = json_schemas.schemas()
    published = {p.name: json.loads(p.read_text()) for p in json_schemas.FOLDER.iterdir()}
    assert published == {name: json.loads(text) for name, text in made.items()}, "run ./check fix"


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
    assert isinstance(found, Draft202012Validator)
    for document in ({"schema": name}, {"schema": "fa-tune-other-1"}, {}):
        with pytest.raises(ValidationError):
            found.validate(document)


def test_a_field_that_nobody_declared_is_refused() -> None:
    doctor = {"schema": "fa-tune-doctor-1", "ok": True, "checks": []}
    validator("fa-tune-doctor-1").validate(doctor)
    with pytest.raises(ValidationError, match="colour"):
        validator("fa-tune-doctor-1").validate(doctor | {"colour": "red"})
