"""A reader of ncu's CSV pages that shares nothing with the program, and is stricter: it knows
well-formed rows in plain or comma-grouped numbers only, and gives up on anything else."""

import re

Facts = dict[tuple[int, int], tuple[str, dict[str, float]]]

UNITS = {
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3,
    "s": 1.0, "second": 1.0,
}  # fmt: skip
DETAILS = {
    ("GPU Speed Of Light Throughput", "Duration"): "gpu__time_duration.sum",
    ("Launch Statistics", "Registers Per Thread"): "launch__registers_per_thread",
    ("Memory Workload Analysis", "L2 Hit Rate"): "lts__t_sector_hit_rate.pct",
}
WANTED = (*DETAILS.values(), "sm__cycles_elapsed.avg")


def read(text: str) -> Facts | None:
    """Each launch's kernel and what it took; None where a line is not as ncu writes it."""
    header: list[str] | None = None
    units: list[str] | None = None
    facts: Facts = {}
    last: tuple[int, int] | None = None
    for line in re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff")):
        if line.startswith("==") or not line.strip():
            continue
        if line.count('","') < 3 and (header is None or not line.startswith('"')):
            continue  # the profiled program's own output
        cells = fields(line)
        if cells is None:
            return None
        if "Kernel Name" in cells:
            if header is not None or len(set(cells)) != len(cells):
                return None
            header = cells
            if not {"ID", "Process ID", "Kernel Name", "Block Size", "Grid Size"} <= set(cells):
                return None
            continue
        if header is None:
            return None
        raw = "Metric Name" not in header
        if raw and units is None:
            units = cells
            if len(cells) != len(header) or cells[header.index("Kernel Name")]:
                return None
            continue
        at = dict(zip(header, cells, strict=False))
        wrong = raw and len(cells) != len(header)
        if wrong or not {"ID", "Process ID", "Kernel Name"} <= at.keys():
            return None
        process, launch = grouped(at["Process ID"]), grouped(at["ID"])
        if process is None or launch is None:
            return None
        key = process, launch
        if raw:
            assert units is not None
            unit_of = dict(zip(header, units, strict=True))
            if key in facts:
                return None
            facts[key] = (at["Kernel Name"], {})
            found = [(n, unit_of[n], at[n]) for n in WANTED if n in at]
        else:
            columns = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
            if any(column not in at for column in columns):
                return None
            section, metric, unit, value = (at[column] for column in columns)
            kernel, _ = facts.setdefault(key, (at["Kernel Name"], {}))
            if kernel != at["Kernel Name"]:
                return None
            name = DETAILS.get((section, metric))
            found = [(name, unit, value)] if name else []
        for name, unit, value in found:
            number = plain(value)
            if number is None:
                continue
            facts[key][1].setdefault(name, number * UNITS.get(unit.strip(), 1.0))
        last = key
    return facts if last is not None else None


def fields(line: str) -> list[str] | None:
    """Cells that are all in quotes and all between commas; a lone comma may end a line."""
    if not line.startswith('"'):
        return None
    body = line[:-1] if line.endswith('",') else line
    if len(body) < 2 or not body.endswith('"'):
        return None
    cells = body[1:-1].split('","')
    return None if any('"' in cell for cell in cells) else [c.strip() for c in cells]


def grouped(text: str) -> int | None:
    """An ID, which any locale may have grouped by thousands."""
    if not re.fullmatch(r"[0-9]+|[0-9]{1,3}(?:[., '\u2019\u00a0][0-9]{3})+", text, re.A):
        return None
    return int(re.sub("[^0-9]", "", text))


def plain(text: str) -> float | None:
    """A number as ncu prints it in English: groups of three between commas, and a point."""
    if not re.fullmatch(r"(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]+)?", text.strip(), re.A):
        return None
    return float(text.replace(",", ""))


def numbers(text: str) -> list[float]:
    """Every number that stands in a cell of its own, in any unit of time."""
    found = (plain(cell) for cell in re.split(r'"[,\s]*"?', text))
    return [n * unit for n in found if n is not None for unit in {1.0, *UNITS.values()}]
