"""Tables on a terminal: as wide as it at most, whole, in parts that say what a row is of."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from configs.common.tables import print_table, report_table

HEADINGS = ("policy", "unit", *(f"figure number {number}" for number in range(12)), "why")
ROWS = [
    ("rigid", "vision > backbone", *(f"{number},000,{row}00" for number in range(12)), "it is so because it is so")
    for row in range(3)
]


def printed(width: int, keys: int = 2) -> list[str]:
    table = report_table("A title of a few words", *HEADINGS, texts=("unit", "why"))
    for number, row in enumerate(ROWS):
        table.add_row(*row, style=None if number else "bold")
        table.add_section()
    console = Console(file=io.StringIO(), width=width)
    print_table(table, console, keys)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200, 400])
def test_no_line_is_wider_than_the_console_and_no_cell_is_lost(width):
    lines = printed(width)
    assert max(map(cell_len, lines)) <= width
    words = [word for line in lines for word in line.split()]
    assert "…" not in "".join(lines)
    for row in ROWS:
        assert all(words.count(number) == sum(other[2:14].count(number) for other in ROWS) for number in row[2:14])
    parts = sum("policy" in line for line in lines)
    assert words.count("(continued)") == parts - 1 and words.count("rigid") == parts * len(ROWS)
    assert (parts == 1) == (width >= 200)


def test_a_table_whose_first_column_alone_is_too_wide_stays_so():
    table = report_table("", "name", "size")
    table.add_row("n" * 50, "12")
    console = Console(file=io.StringIO(), width=40)
    print_table(table, console)
    (row,) = [line for line in console.file.getvalue().splitlines() if "n" * 50 in line]
    assert row.split() == ["n" * 50, "12"]
