"""One section of `benchmarks.gpu` in a process of its own: `python -m benchmarks.gpu.parts PART FOLDER SECONDS SIZES`.

A section is a function that yields rows. Each row is written as soon as it comes, so that what was measured before the
time was up is kept.
"""

import dataclasses
import importlib
import importlib.util
import json
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.sizes import DRY_RUN_SIZES, FULL, BenchmarkSizes

BATCHES, WEIGHTS, TRAINED, HARDWARE = "batches.json", "weights", "mmjax.json", "hardware.gin"
"""Files of the folder that the sections share: batches, initial weights, the figures that mmjax reached, and what the
device reached."""


@dataclasses.dataclass(frozen=True)
class BenchmarkPart:
    """One of the command's sections, in the order of importance.

    Attributes:
        module: The module whose function `rows` makes its rows.
        min_seconds: It is not started when fewer seconds than these are left.
        max_seconds: It is ended after these seconds.
        required_packages: Packages it needs beyond the project's own.
        environment: Environment variables of its process.
    """

    module: str
    min_seconds: float
    max_seconds: float
    required_packages: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),)


_ALONE = (("XLA_CLIENT_MEM_FRACTION", "0.92"),)
_PYTORCH = (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)
PARTS = {
    "correctness": BenchmarkPart("benchmarks.gpu.correctness", 20, 75),
    "mmjax": BenchmarkPart("benchmarks.gpu.mmjax_step", 60, 210, environment=_ALONE),
    "pytorch": BenchmarkPart("benchmarks.gpu.pytorch_step", 45, 210, ("torch", "transformers"), _PYTORCH),
    "attention": BenchmarkPart("benchmarks.gpu.attention", 20, 80),
    "experts": BenchmarkPart("benchmarks.gpu.experts", 15, 45),
    "loss": BenchmarkPart("benchmarks.gpu.loss", 10, 30),
    "efficiency": BenchmarkPart("benchmarks.gpu.efficiency", 15, 60),
    "matmuls": BenchmarkPart("benchmarks.gpu.matmuls", 15, 60),
}


@dataclasses.dataclass(frozen=True)
class PartRun:
    """The arguments of a section.

    Attributes:
        sizes: The full sizes, or the sizes of a dry run.
        folder: Folder that the sections share.
        deadline: When it has to be done, on the clock of `time.monotonic`.
        check_speed: Whether speeds are held to their goals. False in a dry run.
    """

    sizes: BenchmarkSizes
    folder: pathlib.Path
    deadline: float
    check_speed: bool

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def clock(self) -> float:
        """Seconds by which steps are timed: in a dry run of the process's processors, so that others do not count."""
        return time.perf_counter() if self.check_speed else time.process_time()

    @property
    def clock_note(self) -> str:
        """The note of a row about `clock`; empty for wall time."""
        return "" if self.check_speed else "; of processor time"

    def row(
        self,
        name: str,
        value: float | None,
        goal: float | None = None,
        note: str = "",
        *,
        at_most: bool = False,
        always: bool = False,
    ) -> dict:
        """A row of the table.

        Args:
            name: The name of the figure, with its unit.
            value: None where there is none; the note says why.
            goal: The value to reach, or None where there is no goal.
            note: A note for people.
            at_most: The goal is the most the value may be, not the least.
            always: The value is held to the goal in a dry run too.
        """
        met = None
        if goal is not None and value is not None:
            if self.check_speed or always:
                met = bool(value <= goal) if at_most else bool(value >= goal)
            else:
                note = f"{note}; not checked in a dry run".removeprefix("; ")
        return {"name": name, "value": None if value is None else float(value), "goal": goal, "met": met, "note": note}


def missing_packages(part: BenchmarkPart) -> list[str]:
    """Packages that it needs and that are not installed."""
    return [name for name in part.required_packages if importlib.util.find_spec(name) is None]


def installed(name: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(name) is not None


def short_reason(error: BaseException) -> str:
    """Formats an error as one short line."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return f"{type(error).__name__}: {first}"[:160]


def rows_of(name: str, task: PartRun) -> Iterator[dict[str, Any]]:
    """Yields the rows of a section, made in this process."""
    yield from importlib.import_module(PARTS[name].module).rows(task)


def main() -> None:
    """Writes a section's rows, one a line, to `FOLDER/PART.jsonl`."""
    name, folder, seconds, sizes = sys.argv[1:]
    dry_run = DRY_RUN_SIZES.get(sizes)
    deadline = time.monotonic() + float(seconds)
    task = PartRun(dry_run or FULL, pathlib.Path(folder), deadline, check_speed=dry_run is None)
    with (task.folder / f"{name}.jsonl").open("w") as file:
        for row in rows_of(name, task):
            file.write(json.dumps(row) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
