"""Tables on a terminal, none of which is wider than it: columns that do not fit follow in a second table.

Reports of plans, verification, profiles and data sets print their tables so.
"""

from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

_ANY_WIDTH = 10_000
"""A width at which no table is narrowed."""


def report_table(title: str, *columns: str, texts: Sequence[str] = ()) -> Table:
    """A table with narrow columns, of numbers but for the first and `texts`; headings break at spaces.

    Args:
        title: Title above the table.
        *columns: The headings.
        texts: Headings of the columns whose cells may take several lines.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, name in enumerate(columns):
        is_text = name in texts
        justify = "right" if number and not is_text else "left"
        table.add_column(name.replace(" ", "\n"), justify=justify, no_wrap=not is_text)
    return table


def print_table(table: Table, console: Console, keys: int = 1) -> None:
    """Prints a table whole, as several tables if it is wider than the console.

    Text breaks between words. A table whose first columns and one more are wider than the console stays so.

    Args:
        table: The table; the cells of its columns with `no_wrap` stay on one line.
        console: Where to print it.
        keys: How many of its first columns identify a row; every printed table has them.
    """
    for column in table.columns:
        lines = [line for cell in (column.header, *column.cells) for line in str(cell).splitlines()]
        words = lines if column.no_wrap else [word for line in lines for word in line.split()]
        column.min_width = max((cell_len(word) for word in words), default=0)
    parts = list(_parts(table, console, keys))
    if len(parts) > 1:
        table.padding = 0  # one space between columns
        parts = min(parts, list(_parts(table, console, keys)), key=len)
    for part in parts:
        part.width = _least_width(part, console) if _is_too_wide(part, console) else None
        console.print(part, crop=False)


def _parts(table: Table, console: Console, keys: int) -> Iterator[Table]:
    """Tables of the first columns and as many others, in order, as fit beside them."""
    columns, title = table.columns, str(table.title)
    alone = [_least_width(_with_columns(table, title, (column,)), console) for column in columns]
    # Every column beside others makes a table wider by as much, less than alone by what it shares with them.
    shared = sum(alone[:2]) - _least_width(_with_columns(table, title, columns[:2]), console)
    key_width = sum(alone[:keys]) - shared * (keys - 1)
    taken, width = list[Column](), key_width
    for column, own_width in zip(columns[keys:], alone[keys:], strict=True):
        if taken and width + own_width - shared > console.width:
            yield _with_columns(table, title, (*columns[:keys], *taken))
            taken, width, title = [], key_width, f"{table.title} (continued)"
        taken.append(column)
        width += own_width - shared
    yield _with_columns(table, title, (*columns[:keys], *taken))


def _with_columns(table: Table, title: str, columns: Sequence[Column]) -> Table:
    """A table of the same rows with some of its columns."""
    part = Table(title=title, title_justify=table.title_justify, box=table.box, padding=table.padding)
    for column in columns:
        part.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, min_width=column.min_width)
    cells = zip(*(column.cells for column in columns), strict=True)
    for row, row_cells in zip(table.rows, cells, strict=True):
        part.add_row(*row_cells, style=row.style, end_section=row.end_section)
    return part


def _is_too_wide(table: Table, console: Console) -> bool:
    return _least_width(table, console) > console.width


def _least_width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=_ANY_WIDTH), table).minimum
