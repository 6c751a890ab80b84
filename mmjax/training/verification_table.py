"""What a person sees of a verification: one row a layout and module, each layout as soon as it is done."""

from collections.abc import Iterable

import rich
from rich.console import Console
from rich.live import Live
from rich.table import Table

from mmjax.training.verification import Difference, LayoutReport


def print_reports(reports: Iterable[LayoutReport], console: Console | None = None) -> list[LayoutReport]:
    """Prints reports as they come, and the verdict; returns them."""
    console = console or rich.get_console()
    table = Table(title="difference from one plain device")
    for name in ("layout", "module", "loss", "gradient", "tolerance", "worst parameter", ""):
        table.add_column(name, overflow="fold")
    done = []
    with Live(table, console=console, auto_refresh=False) as live:
        for report in reports:
            done.append(report)
            for number, (module, found) in enumerate(report.modules.items()):
                error, tolerance, parameter = found.gradient.error, found.gradient.tolerance, found.gradient.what
                table.add_row(
                    "" if number else report.plan,
                    module,
                    _loss(found.loss),
                    f"{error:.1e}",
                    f"{tolerance:.1e}",
                    parameter,
                    "ok" if found.ok else "[bold red]WRONG[/]",
                    end_section=number == len(report.modules) - 1,
                )
            if console.is_terminal:
                live.refresh()
            else:  # there the table comes at the end
                console.print(f"{report.plan}: {'ok' if report.ok else 'WRONG'}", highlight=False, soft_wrap=True)
    wrong = [report.plan for report in done if not report.ok]
    verdict = f"{len(wrong)} of {len(done)} layouts are wrong: {'; '.join(wrong)}" if wrong else "all layouts agree"
    console.print(verdict, highlight=False)
    return done


def _loss(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    return f"{difference.error:.1e}" + ("" if difference.excess <= 1 else f" > {difference.tolerance:.1e}")
