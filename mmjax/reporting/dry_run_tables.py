"""The figures of a dry run as tables and sentences, for terminals and pages, and as JSON."""

import collections
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from configs.common.tables import print_table, report_table
from mmjax.training.dry_run.overlap import Collective, covered_by
from sharding.html.numbers import count, count_of, seconds, size

if TYPE_CHECKING:  # they import jax
    from mmjax.training.dry_run.compiled_program import ProgramFigures
    from mmjax.training.dry_run.device_memory import DeviceMemory
    from mmjax.training.dry_run.dry_run import CompiledProgram, DryRun

WASTE = 1.2
"""Ratio of compiled FLOPs to the model's from which a program is named."""

_PRINTED = 20
"""Most collectives that a terminal is shown."""


class Figures(NamedTuple):
    """A table: its caption, headings, of which those of numbers start with #, and rows."""

    caption: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def in_words(run: "DryRun") -> str:
    """What a dry run found, in sentences."""
    fullest = run.fullest
    fit = (
        f"which fits, with {size(fullest.spare_bytes)} to spare"
        if run.fits
        else f"which does not fit, by {size(-fullest.spare_bytes)}"
    )
    told = [
        f"{count_of(len(run.programs), 'distinct program')} of {count_of(run.stages, 'stage')} on "
        f"{count_of(run.devices, 'device')}, compiled for {run.target} in {seconds(run.compile_seconds)}.",
        f"The fullest devices, of {_named(fullest.stages)}, take {size(fullest.compiled_bytes)} of the "
        f"{size(fullest.room)} that arrays can take, {fit}; planners count {size(fullest.planned_bytes)} "
        f"({fullest.error:+.1%}), and {size(fullest.planned_full)} ({fullest.error_full:+.1%}) if every row is full.",
    ]
    told += [
        f"{program.name} computes {program.flops_ratio:.1f} times the matmuls of the model."
        for program in run.programs
        if program.flops_ratio and program.flops_ratio > WASTE
    ]
    return " ".join(told)


def memory_figures(run: "DryRun") -> Figures:
    """Memory by pipeline rank and kind, XLA's beside the planners'."""
    rows = [
        (
            _named(memory.stages),
            size(memory.planned_bytes),
            size(memory.compiled_bytes),
            f"{memory.error:+.1%}",
            f"{memory.error_full:+.1%}",
            size(memory.spare_bytes) if memory.spare_bytes >= 0 else f"-{size(-memory.spare_bytes)}",
            *(f"{_giga(memory.planned[kind])} / {_giga(memory.compiled[kind])}" for kind in memory.planned),
        )
        for memory in run.memory
    ]
    kinds = (f"#{kind}" for kind in run.fullest.planned)
    return Figures(
        "Memory of the fullest device, as planners count it and as XLA allocates it; kinds: planners / XLA in GB",
        ("stages", "#planners", "#XLA", "#error", "#error, full rows", "#to spare", *kinds),
        rows,
    )


def program_figures(run: "DryRun") -> Figures:
    """Every distinct program: memory, FLOPs, communication, compile time."""
    rows = [
        (
            program.name,
            count(program.stands_for),
            size(program.figures.temporary_bytes) if program.figures.temporary_bytes else "",
            f"{program.figures.flops / 1e12:,.2f}" if program.figures.flops else "",
            f"{program.flops_ratio:.2f}" if program.flops_ratio else "",
            *(
                size(bytes_) if bytes_ else ""
                for bytes_ in (
                    program.figures.exchanged_bytes,
                    program.figures.exposed_bytes,
                    program.figures.synchronous_bytes,
                )
            ),
            seconds(program.figures.compile_seconds),
        )
        for program in run.programs
    ]
    return Figures(
        "Programs of one call on one device; TFLOP: of matmuls, without attention kernels; of the model's: over the "
        "model's own, recomputed ones included",
        (
            "program",
            "#stands for",
            "#temporary",
            "#TFLOP",
            "#of the model's",
            "#exchanged",
            "#exposed",
            "#synchronous",
            "#compiled in",
        ),
        rows,
    )


def collective_figures(run: "DryRun", exposed_only: bool = False) -> Figures:
    """Equal collectives of every program, and what runs beside them.

    Args:
        run: The dry run.
        exposed_only: Leaves out the collectives that matmuls cover.
    """
    found = [
        (program.name, times, collective)
        for program in run.programs
        for times, collective in _equal_collectives(program.figures)
        if not (exposed_only and collective.hidden)
    ]
    rows = [
        (
            name,
            collective.kind,
            count(times),
            size(collective.size),
            size(times * collective.size),
            "synchronous" if collective.synchronous else "exposed" if not collective.hidden else covered_by(collective),
            collective.operation,
        )
        for name, times, collective in sorted(found, key=lambda entry: -entry[1] * entry[2].size)
    ]
    return Figures(
        "Collectives, most bytes first: what runs beside each",
        ("program", "collective", "#times", "#bytes", "#all bytes", "covered by", "operation"),
        rows,
    )


def _equal_collectives(figures: "ProgramFigures") -> Iterator[tuple[int, Collective]]:
    """Collectives that differ in name alone once, with how many times they run."""
    times: dict[tuple[Any, ...], int] = collections.Counter()
    first: dict[tuple[Any, ...], Collective] = {}
    for collective, runs in figures.collectives:
        key = (collective.kind, collective.size, collective.synchronous, covered_by(collective), collective.operation)
        times[key] += runs
        first.setdefault(key, collective)
    for key, collective in first.items():
        yield times[key], collective


def print_dry_run(run: "DryRun", console: Console) -> None:
    """Prints the memory, the programs, the exposed collectives with most bytes, and what was found in words."""
    exposed = collective_figures(run, exposed_only=True)
    rows = [row[:-1] for row in exposed.rows[:_PRINTED]]
    shown = Figures("Exposed and synchronous collectives with most bytes", exposed.columns[:-1], rows)
    for figures in (memory_figures(run), program_figures(run), *([shown] if rows else [])):
        table = report_table(figures.caption, *(name.lstrip("#") for name in figures.columns))
        for row in figures.rows:
            table.add_row(*row)
        print_table(table, console)
    console.print(in_words(run), soft_wrap=True)


def dry_run_document(run: "DryRun") -> dict[str, Any]:
    """All figures of a dry run as JSON values, in bytes, seconds and FLOPs."""
    return {
        "target": run.target,
        "devices": run.devices,
        "stages": run.stages,
        "fits": run.fits,
        "compile_seconds": run.compile_seconds,
        "memory": [_memory_document(memory) for memory in run.memory],
        "programs": [_program_document(program) for program in run.programs],
    }


def _memory_document(memory: "DeviceMemory") -> dict[str, Any]:
    return {
        "stages": list(memory.stages),
        "planned_bytes": memory.planned_bytes,
        "planned_full_bytes": memory.planned_full,
        "compiled_bytes": memory.compiled_bytes,
        "spare_bytes": memory.spare_bytes,
        "planned": dict(memory.planned),
        "compiled": dict(memory.compiled),
    }


def _program_document(program: "CompiledProgram") -> dict[str, Any]:
    figures = program.figures
    return {
        "name": program.name,
        "stands_for": program.stands_for,
        "temporary_bytes": figures.temporary_bytes,
        "flops": figures.flops,
        "model_flops": program.model_flops,
        "exchanged_bytes": figures.exchanged_bytes,
        "exposed_bytes": figures.exposed_bytes,
        "synchronous_bytes": figures.synchronous_bytes,
        "compile_seconds": figures.compile_seconds,
        "collectives": [
            {
                **{name: getattr(collective, name) for name in ("kind", "size", "synchronous", "operation")},
                "times": times,
                "covered_by": covered_by(collective),
            }
            for times, collective in _equal_collectives(figures)
        ],
    }


def _named(stages: Sequence[str]) -> str:
    """Names of pipeline ranks, the first of many."""
    return ", ".join(stages) if len(stages) < 4 else f"{stages[0]} and {len(stages) - 1} more"


def _giga(bytes_: float) -> str:
    return f"{bytes_ / 1e9:.2f}"
