"""A figure of the page as a file of its own: SVG, PNG or PDF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.files import save_file

Spec = dict[str, Any]  # a figure, in Vega-Lite
SUFFIXES = (".svg", ".png", ".pdf")
PNG_SCALE = 2.0
# The fonts that vl-convert brings along, so that the same figure is the same file everywhere.
FONT = "Liberation Sans, Arial, sans-serif"
GREY = "#8c959f"  # of lines, on light and dark alike
_DARK = "<style>@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }</style>"


def check_suffix(path: Path) -> None:
    """Raise InvalidConfig for a file that is no picture's."""
    if path.suffix not in SUFFIXES:
        raise InvalidConfig(f"{path}: a plot is {', '.join(SUFFIXES)}")


def svg(spec: Spec) -> str:
    """The figure without a background; its text suits light and dark."""
    import vl_convert

    text = str(vl_convert.vegalite_to_svg(json.dumps(_with_fonts(spec))))
    begin = text.index(">") + 1
    return text[:begin] + _DARK + text[begin:] + "\n"


def save(path: Path, spec: Spec) -> None:
    """Write the figure in the form that the file's name asks for; raises InvalidConfig and
    StorageError."""
    import vl_convert

    check_suffix(path)
    text = json.dumps(_with_fonts(spec) | {"background": "white"})
    if path.suffix == ".svg":
        data = svg(spec).encode()
    elif path.suffix == ".png":
        data = vl_convert.vegalite_to_png(text, scale=PNG_SCALE)
    else:
        data = vl_convert.vegalite_to_pdf(text)
    save_file(path, data)


def _with_fonts(spec: Spec) -> Spec:
    axis = {"gridColor": GREY, "gridOpacity": 0.35, "domainColor": GREY, "tickColor": GREY}
    return {
        **spec,
        "background": None,
        "config": {"font": FONT, "axis": axis, "view": {"stroke": None}, "concat": {"spacing": 24}},
    }
