"""The rows as text for people, as JSON, and back from JSON."""

import itertools
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.papers.orders import ORDERS, check_orders
from benchmarks.papers.paper_rows import Band, Figure, PaperName, PaperRow, Unit
from benchmarks.rows import package_versions
from configs.common.errors import UserError
from sharding.html.numbers import percent, significant, size

PAPER_TITLES: Mapping[PaperName, str] = {
    "disttrain": "DistTrain",
    "omnibal": "OmniBal",
    "optimus": "Optimus",
    "orchmllm": "OrchMLLM",
    "lmms_engine": "lmms-engine",
    "text_only": "Multimodal over text alone",
}


def rows_to_json(rows: Sequence[PaperRow]) -> str:
    """The rows, the orders of systems, and the versions of packages."""
    orders = [checked.as_json() for checked in check_orders(ORDERS, rows)]
    return json.dumps({"rows": [row.as_json() for row in rows], "orders": orders, "versions": package_versions()})


def rows_of_files(paths: Iterable[str]) -> list[PaperRow]:
    """The rows of files that `rows_to_json` wrote, in the order of the files.

    Raises:
        UserError: A file is missing, or is none of these.
    """
    rows = []
    for path in paths:
        try:
            document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
            rows += [row_of_json(row) for row in document["rows"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"--rows: {path} does not hold rows that --json wrote: {error}") from error
    return rows


def row_of_json(document: Mapping[str, Any]) -> PaperRow:
    """The inverse of `PaperRow.as_json`."""
    fields = {name: value for name, value in document.items() if name != "within"}
    for name in ("at_layout", "best"):
        fields[name] = _figure(fields[name])
    fields["published"] = _band(fields["published"])
    fields["assumptions"] = tuple(fields["assumptions"])
    return PaperRow(**fields)


def _figure(document: Mapping[str, Any] | None) -> Figure | None:
    if document is None:
        return None
    value = _band(document["value"])
    assert value is not None
    return Figure(document["kind"], value, _band(document["range"]))


def _band(ends: Sequence[float] | None) -> Band | None:
    return None if ends is None else Band(*ends)


def print_rows(rows: Sequence[PaperRow]) -> None:
    """Prints the rows of every figure, the assumptions of each paper, and the orders of systems."""
    for paper, title in PAPER_TITLES.items():
        of_paper = [row for row in rows if row.paper == paper]
        if not of_paper:
            continue
        print(f"{title}: published, and simulated, computed or measured here\n")
        notes = list(dict.fromkeys(note for row in of_paper for note in row.assumptions))
        for (place, quantity), panel in itertools.groupby(of_paper, key=lambda row: (row.place, row.quantity)):
            print(f"{place}: {quantity}")
            for row in panel:
                numbers = "".join(f"[{notes.index(note) + 1}]" for note in row.assumptions)
                print(f"  {row.row}, {row.system}: {row_in_words(row)} {numbers}".rstrip())
        print(*(f"[{number}] {note}" for number, note in enumerate(notes, start=1)), sep="\n", end="\n\n")
    for checked in check_orders(ORDERS, rows):
        print(checked.words)


def row_in_words(row: PaperRow) -> str:
    """The figures of a row, each with its range."""
    words = [f"{band_in_words(row.published, row.unit)} published"] if row.published else []
    best = f"our best ({row.best_plan})" if row.best_plan else "of our best"
    for figure, where in ((row.at_layout, "at its layout"), (row.best, best)):
        if figure is not None:
            range_ = f" ({band_in_words(figure.range, row.unit)})" if figure.range else ""
            words.append(f"{band_in_words(figure.value, row.unit)}{range_} {figure.kind} {where}")
    return "; ".join(words)


def cells(row: PaperRow) -> tuple[str, ...]:
    """The cells of a row, its assumptions left out."""
    return (
        row.place,
        row.row,
        row.system,
        row.quantity,
        band_in_words(row.published, row.unit),
        *(
            words
            for figure in (row.at_layout, row.best)
            for words in (
                band_in_words(figure and figure.value, row.unit),
                band_in_words(figure and figure.range, row.unit),
            )
        ),
    )


def band_in_words(band: Band | None, unit: Unit) -> str:
    """The ends of a band in its unit; one figure where they look the same, nothing without a band."""
    if band is None:
        return ""
    least, most = (value_in_words(end, unit) for end in band)
    return least if least == most else f"{least} to {most}"


def value_in_words(value: float, unit: Unit) -> str:
    """A value in its unit."""
    if unit == "share":
        return percent(value)
    if unit == "bytes":
        return size(value)
    written = significant(value, 3)
    return {
        "seconds": f"{written} s",
        "milliseconds": f"{written} ms",
        "times": f"{written} x",
        "tokens/s": f"{value:,.0f}",
    }.get(unit, written)
