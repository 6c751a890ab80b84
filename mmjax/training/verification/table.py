"""What a person sees of a verification: one small table a layout, as soon as it is done, and the verdict."""

from collections.abc import Iterable

import rich
from rich.console import Console
from rich.table import Table

from mmjax.training.verification.comparison import LayoutReport


def print_verification(reports: Iterable[LayoutReport], console: Console | None = None) -> list[LayoutReport]:
    """Prints reports as they come, and the verdict; returns them."""
    console = console or rich.get_console()
    done = []
    for report in reports:
        done.append(report)
        console.print(_table(report))
    wrong = [report.plan for report in done if not report.ok]
    if wrong:
        console.print(f"{len(wrong)} of {len(done)} layouts are wrong: {'; '.join(wrong)}", highlight=False)
    else:
        console.print(f"all {len(done)} layouts agree with one plain device", highlight=False)
    return done


def _table(report: LayoutReport) -> Table:
    table = Table(title=report.plan, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("module", "loss", "gradient", "at most", ""):
        table.add_column(name, no_wrap=True)
    table.add_column("worst parameter", overflow="fold")
    for module, found in report.modules.items():
        loss = "-" if found.loss is None else f"{found.loss.error:.1e}"
        of = found.gradient
        verdict = "ok" if found.ok else "WRONG"
        table.add_row(module, loss, f"{of.error:.1e}", f"{of.tolerance:.1e}", verdict, of.what)
    return table
