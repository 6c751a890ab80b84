"""`python -m benchmarks.gpu`: mmjax on one Hopper GPU, in one table and under eight minutes.

Correctness of every kernel there; a training step of a ViT-L and a 1.5 B backbone in tokens/s and MFU, against the same
model in PyTorch; attention against PyTorch's SDPA and cuDNN; experts, and the loss over chunks of the vocabulary, each
against its other forms; matmuls and attention by shape beside the analytic costs, which `--hardware=FILE` writes as the
description of a cluster for `python -m mmjax.plan --cluster=FILE`; tiles of collective matmuls against cuBLAS. It
needs jax with CUDA (the extra `cuda13`) and, for PyTorch's sections, torch with CUDA and transformers (`parity`);
without these it goes on and says so. `--dry_run` runs all of it at tiny sizes on any machine, which says that it runs
and nothing else; with `--size=medium` a model of 40 M parameters, whose steps both frameworks time in seconds of the
processors.

Each section is a process of its own, so that one framework's memory pool is gone before another's begins. Sections run
in the order of importance; what the time does not suffice for says so in the table.
"""

import dataclasses
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from benchmarks.command import run_benchmark
from benchmarks.gpu.parts import BATCHES, HARDWARE, PARTS, BenchmarkPart, missing_packages
from benchmarks.rows import every_goal_met, print_table
from mmjax import cli

SECONDS = 465.0
"""Seconds for all sections: eight minutes, less the time of starting and of the table."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuArguments(cli.JsonArguments):
    """Flags of the command."""

    dry_run: bool = cli.flag(False, "Runs tiny sizes on any machine; speeds are not held to their goals.")
    size: str = cli.flag("tiny", "Size of a dry run: tiny or medium.", parse=cli.one_of("tiny", "medium"))
    only: tuple[str, ...] = cli.flag(
        tuple(PARTS),
        "Parts to run; pytorch needs mmjax's weights.",
        metavar="PARTS",
        parse=cli.list_of(cli.one_of(*PARTS)),
    )
    hardware: str = cli.flag("", "Writes the device, with the rates that it reached, as a cluster.", metavar="FILE")


def main(arguments: GpuArguments) -> int:
    """Runs the sections and prints the table. Returns 0 if every checked goal is met and no section failed, else 1."""
    from benchmarks.gpu.batches import draw_steps, save_steps
    from benchmarks.gpu.sizes import DRY_RUN_SIZES, FULL
    from configs.common.errors import UserError

    end = time.monotonic() + SECONDS
    if not arguments.dry_run and arguments.size != GpuArguments.size:
        raise UserError(f"--size={arguments.size} is the size of a dry run; add --dry_run")
    device, problem = _device()
    if problem and not arguments.dry_run:
        raise UserError(problem)
    size = arguments.size if arguments.dry_run else "full"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        save_steps(folder / BATCHES, draw_steps(DRY_RUN_SIZES.get(size, FULL)))
        rows = [row for part in PARTS if part in arguments.only for row in run_part(part, folder, end, size)]
        if arguments.hardware:
            rows.append(_write_hardware(folder / HARDWARE, pathlib.Path(arguments.hardware)))
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "dry_run": arguments.dry_run,
        "size": size,
        **device,
        "seconds": round(SECONDS - (end - time.monotonic())),
        "rows": rows,
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        print_table(rows, comparison_key="note", digits=4)
        print(", ".join(f"{key} {value}" for key, value in result.items() if key != "rows"))
    failed = any(row.get("failed") for row in rows)
    return 0 if every_goal_met(rows) and not failed else 1


def _write_hardware(measured: pathlib.Path, file: pathlib.Path) -> dict:
    """Copies the description of the device to a file; the row says where it is, or that nothing was measured."""
    if not measured.exists():
        return _note_row("hardware", f"{file} not written: efficiency was not measured, or the device is not known")
    file.write_text(measured.read_text())
    return _note_row("hardware", f"written to {file}")


def _device() -> tuple[dict[str, str], str]:
    """The device and versions, asked in a process of its own, and why only a dry run is possible here, or ""."""
    asked = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.device"], capture_output=True, text=True, check=False, env=_environment()
    )
    if asked.returncode:
        return {"device": "none"}, f"no device can be asked: {asked.stderr.strip().splitlines()[-1]}"
    answer = json.loads(asked.stdout)
    return answer, answer.pop("problem")


def run_part(name: str, folder: pathlib.Path, end: float, size: str) -> list[dict]:
    """Returns a section's rows. If it was cut for time or failed, the rows it made before, and a row that says so.

    Args:
        name: One of `PARTS`.
        folder: The folder that the sections share.
        end: When the command has to be done, on the clock of `time.monotonic`.
        size: "full", or a name of `DRY_RUN_SIZES`.
    """
    part = PARTS[name]
    if absent := missing_packages(part):
        return [_note_row(name, f"not run: needs {' and '.join(absent)}, not installed here")]
    seconds = min(part.max_seconds, end - time.monotonic())
    if seconds < part.min_seconds:
        return [_note_row(name, f"cut for time: {max(seconds, 0):.0f} s left")]
    code = _run(name, part, folder, seconds, size)
    path = folder / f"{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if code is None:
        rows.append(_note_row(name, f"cut for time after {seconds:.0f} s"))
    elif code:
        rows.append(_note_row(name, f"failed: {_last_line(folder / f'{name}.log')}") | {"failed": True})
    return rows


def _run(name: str, part: BenchmarkPart, folder: pathlib.Path, seconds: float, size: str) -> int | None:
    """Returns the exit status of the section's process; None where it had to be ended."""
    command = [sys.executable, "-m", "benchmarks.gpu.parts", name, str(folder), str(seconds - 5), size]
    with (folder / f"{name}.log").open("w") as log:
        child = subprocess.Popen(
            command, stdout=log, stderr=log, env=_environment(part), start_new_session=True
        )  # a session of its own, so that compilers that it starts end with it
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def _environment(part: BenchmarkPart | None = None) -> dict[str, str]:
    return {**os.environ, **dict(part.environment if part else (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),))}


def _note_row(name: str, note: str) -> dict:
    return {"name": name, "value": None, "goal": None, "met": None, "note": note}


def _last_line(log: pathlib.Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


if __name__ == "__main__":
    run_benchmark(
        main,
        GpuArguments,
        name="benchmarks.gpu",
        summary="Measures mmjax on one Hopper GPU, and compares it with PyTorch.",
        examples=("--only=mmjax,pytorch",),
    )
