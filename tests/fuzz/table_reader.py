"""A reader of comma-separated tables that shares nothing with the program: character by
character, strict about quotes and about the number of cells."""


def read(text: str) -> list[dict[str, str]] | None:
    """Each row's cells by heading; None for a text that is no such table."""
    records = _records(text.removeprefix("\ufeff"))
    if records is None:
        return None
    records = [cells for cells in records if any(cell.strip() for cell in cells)]
    if not records:
        return None
    header = [cell.strip() for cell in records[0]]
    if any(len(cells) != len(header) for cells in records):
        return None
    return [dict(zip(header, cells, strict=True)) for cells in records[1:]]


def _records(text: str) -> list[list[str]] | None:
    records: list[list[str]] = []
    cells: list[str] = []
    cell, quoted, closed, place = "", False, False, 0
    while place < len(text):
        char = text[place]
        place += 1
        if quoted:
            if char != '"':
                cell += char
            elif text[place : place + 1] == '"':
                cell += char
                place += 1
            else:
                quoted, closed = False, True
        elif char == '"' and not cell and not closed:
            quoted = True
        elif char == ",":
            cells.append(cell)
            cell, closed = "", False
        elif char in "\r\n":
            records.append([*cells, cell])
            cells, cell, closed = [], "", False
        elif closed:
            return None
        else:
            cell += char
    if quoted:
        return None
    return [*records, [*cells, cell]] if cells or cell else records
