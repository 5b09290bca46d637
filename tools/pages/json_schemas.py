"""Writes docs/schemas: the JSON Schema of every document that a command prints.

python tools/pages/json_schemas.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from json_documents import DOCUMENTS, name_of

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> Mapping[str, str]:
    """File name -> text."""
    found = {}
    for document in DOCUMENTS:
        schema = document.model_json_schema(by_alias=True)
        text = json.dumps({"$schema": DIALECT, **schema}, indent=1, ensure_ascii=False)
        found[f"{name_of(document)}.json"] = text + "\n"
    return found


def main() -> None:
    """Write them all, and remove what no document has any more."""
    made = schemas()
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
