"""Reports of verification: a layout's differences from the reference by module, their tolerances, and tables of them.

`comparison.py` makes them, the command prints them.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from configs.common.short_repr import short_repr
from configs.common.tables import print_table, report_table

_REMARKS = "worst parameter"


@dataclasses.dataclass(frozen=True)
class Difference:
    """The error of a result relative to the reference, and its tolerance.

    Attributes:
        error: The relative error.
        tolerance: The largest error that is accepted.
        what: The parameter; for losses the section of the loss name after the module's.
    """

    error: float
    tolerance: float
    what: str = ""

    @property
    def excess(self) -> float:
        """Error divided by tolerance; above 1 it is too large."""
        return self.error / self.tolerance


def worst(differences: Iterable[Difference | None]) -> Difference | None:
    """Returns the difference that is the largest relative to its tolerance; None without one."""
    return max(filter(None, differences), key=lambda difference: difference.excess, default=None)


@dataclasses.dataclass(frozen=True)
class ModuleReport:
    """The differences of one module of a layout, the worst of all steps; None for results that a module lacks.

    Attributes:
        loss: Difference of its loss, or of another loss of the module or its layers if that is worse.
        gradient: Difference of the parameter whose gradient's error is the largest relative to its tolerance.
        update: The worst difference of the change of a parameter by one update, or of its optimizer state after it.
        evaluation: Difference of its loss in an evaluation, which has programs of its own; for all modules, of the
            score and of the tokens that are called correct.
    """

    loss: Difference | None = None
    gradient: Difference | None = None
    update: Difference | None = None
    evaluation: Difference | None = None

    __repr__ = short_repr

    @property
    def ok(self) -> bool:
        """Whether all differences are within their tolerances."""
        return all(difference.excess <= 1 for difference in self.differences().values() if difference)

    def differences(self) -> dict[str, Difference | None]:
        """Returns the differences by the name of the result."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def worse(self, other: "ModuleReport") -> "ModuleReport":
        """Returns the worse of each difference of two steps."""
        others = other.differences()
        return ModuleReport(**{name: worst((mine, others[name])) for name, mine in self.differences().items()})


@dataclasses.dataclass(frozen=True)
class LayoutReport:
    """The differences of all modules of a layout.

    Attributes:
        layout: Name of the layout.
        modules: Reports by module name.
    """

    layout: str
    modules: dict[str, ModuleReport]

    def __repr__(self) -> str:
        beyond = [name for name, module in self.modules.items() if not module.ok]
        return f"LayoutReport({self.layout!r}: {'not ok in ' + ', '.join(beyond) if beyond else 'ok'})"

    @property
    def ok(self) -> bool:
        """Whether all modules are within their tolerances."""
        return all(module.ok for module in self.modules.values())

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON object that `python -m mmjax.verify --json` prints for the layout."""
        modules = {name: {"ok": module.ok, **dataclasses.asdict(module)} for name, module in self.modules.items()}
        return {"layout": self.layout, "ok": self.ok, "modules": modules}

    def to_message(self) -> bytes:
        """Serialises the report for another process."""
        return json.dumps(self.to_json()).encode()

    @classmethod
    def from_message(cls, message: bytes) -> "LayoutReport":
        """The inverse of `to_message`."""
        read = json.loads(message)
        modules = {
            name: ModuleReport(
                **{what: found and Difference(**found) for what, found in differences.items() if what != "ok"}
            )
            for name, differences in read["modules"].items()
        }
        return cls(read["layout"], modules)


# ---------------------------------------------------------------------- the tables


def print_report(report: LayoutReport, console: Console) -> None:
    """Prints the table of a layout: the worst differences of each module, and the tolerances that are exceeded."""
    print_table(_table(report), console)


def print_verdict(reports: Sequence[LayoutReport], console: Console) -> None:
    """Prints whether all layouts agree, or which do not."""
    wrong = [report.layout for report in reports if not report.ok]
    if wrong:
        console.print(f"{len(wrong)} of {len(reports)} layouts are wrong: {'; '.join(wrong)}", highlight=False)
    else:
        agree = "the layout agrees" if len(reports) == 1 else f"all {len(reports)} layouts agree"
        console.print(f"{agree} with the single-device reference", highlight=False)


def _table(report: LayoutReport) -> Table:
    columns = ("module", "loss", "evaluation", "gradient", "update", "", _REMARKS)
    table = report_table(report.layout, *columns, texts=(_REMARKS,))
    for name, module in report.modules.items():
        errors = [_error(each) for each in (module.loss, module.evaluation, module.gradient, module.update)]
        table.add_row(name, *errors, "ok" if module.ok else "WRONG", "; ".join(_remarks(module)))
    return table


def _error(difference: Difference | None) -> str:
    return f"{difference.error:.1e}" if difference else "-"


def _remarks(module: ModuleReport) -> Iterator[str]:
    """Yields the excessive differences with their tolerances; without any, the parameter with the worst gradient."""
    for name, difference in module.differences().items():
        if difference and difference.excess > 1:
            yield f"{name}: at most {difference.tolerance:.1e} {difference.what}".strip()
    if module.ok:
        yield module.gradient.what if module.gradient else "frozen"
