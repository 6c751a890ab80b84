"""What a run reports about its steps, and the files that keep it: JSON lines and TensorBoard."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import tensorboardX

from mmjax.training.metrics.flops import model_flops_utilization
from mmjax.training.metrics.step_timer import StepTimes

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"

# Phase -> (real, capacity): patches, tokens or images, of one global batch or summed over several.
TokenCounts = Mapping[str, tuple[int, int]]


def sum_counts(batches: Iterable[TokenCounts]) -> dict[str, tuple[int, int]]:
    """Adds the counts of several global batches."""
    total: dict[str, tuple[int, int]] = {}
    for counts in batches:
        for phase, (real, capacity) in counts.items():
            before = total.get(phase, (0, 0))
            total[phase] = (before[0] + real, before[1] + capacity)
    return total


def padding_fractions(counts: TokenCounts) -> dict[str, float]:
    """Padding of each phase as a share of its capacity, 0 to 1."""
    return {phase: 1.0 - real / capacity if capacity else 0.0 for phase, (real, capacity) in counts.items()}


@dataclasses.dataclass(frozen=True)
class StepReport:
    """A window of steps, as people and files see it.

    Attributes:
        step: Steps done when the window ended.
        losses: Loss of each modality, at the window's last step.
        times: Seconds a step, by part.
        tokens_per_second: Real backbone tokens a second.
        padding: Share of padding in each phase.
        mfu: Model FLOPs over the peak of the allocated devices, or None where that is not known.
        others: Any other numbers by name, for the files alone (gradient norm, learning rate).
    """

    step: int
    losses: Mapping[str, float]
    times: StepTimes
    tokens_per_second: float
    padding: Mapping[str, float]
    mfu: float | None = None
    extra_scalars: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """Every number under one name each, such as `loss/language` and `seconds/data`."""
        times = {name: getattr(self.times, name) for name in ("wall", "data", "dispatch", "device", "other")}
        return {
            **{f"loss/{name}": value for name, value in self.losses.items()},
            **{f"seconds/{name}": value for name, value in times.items()},
            "tokens_per_second": self.tokens_per_second,
            **{f"padding/{name}": value for name, value in self.padding.items()},
            **({} if self.mfu is None else {"mfu": self.mfu}),
            **self.extra_scalars,
        }


def make_step_report(
    step: int,
    losses: Mapping[str, float],
    times: StepTimes,
    counts: TokenCounts,
    capacity_flops: Mapping[str, float],
    device_kinds: Sequence[str],
    extra_scalars: Mapping[str, float] | None = None,
) -> StepReport:
    """Joins what the loop knows of a window.

    Args:
        step: Steps done.
        losses: Loss of each modality.
        times: Of the window.
        counts: Summed over the window's batches (`sum_counts`); `backbone` gives the throughput.
        capacity_flops: Model FLOPs of each phase for one step of a full batch; the real share of them counts for MFU.
        device_kinds: Kinds of the devices allocated to the run.
        others: See `StepReport`.
    """
    padding = padding_fractions(counts)
    flops = sum((work * (1.0 - padding[phase]) for phase, work in capacity_flops.items()), start=0.0)
    return StepReport(
        step=step,
        losses=losses,
        times=times,
        tokens_per_second=counts["backbone"][0] / (times.wall * times.steps),
        padding=padding,
        mfu=model_flops_utilization(flops, times.wall, device_kinds),
        extra_scalars=extra_scalars or {},
    )


@runtime_checkable
class MetricsWriter(Protocol):
    """Keeps the numbers of a run."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Keeps numbers of a step."""

    def close(self) -> None:
        """Flushes what is kept."""


class NullWriter:
    """Keeps nothing: for every process but the first."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


class FileWriter:
    """Writes `metrics.jsonl` and TensorBoard files into the workdir.

    A run that resumes after step k drops what an earlier run wrote about later steps: it will write them again.
    """

    def __init__(self, workdir: str, resumed_step: int = 0):
        folder = pathlib.Path(workdir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS_FILE
        kept = [line for line in read_metrics(workdir) if line["step"] <= resumed_step]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))
        self._lines = path.open("a")
        self._events = tensorboardX.SummaryWriter(str(folder / TENSORBOARD_FOLDER), purge_step=resumed_step + 1)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends one line `{"step": …, NAME: …}`. JSON has no NaN or infinity: such a number is null there."""
        finite = {name: float(value) if math.isfinite(value) else None for name, value in scalars.items()}
        self._lines.write(json.dumps({"step": step, **finite}) + "\n")
        self._lines.flush()
        for name, value in scalars.items():
            self._events.add_scalar(name, float(value), step)

    def close(self) -> None:
        self._lines.close()
        self._events.close()


def open_metrics_writer(workdir: str, resumed_step: int = 0, first_process: bool = True) -> MetricsWriter:
    """The writer of this process: files for the first one, nothing for the others."""
    return FileWriter(workdir, resumed_step) if first_process else NullWriter()


def read_metrics(workdir: str) -> list[dict]:
    """The lines of `metrics.jsonl`, oldest first; none without the file.

    A last line that a killed run left half-written is not among them.
    """
    path = pathlib.Path(workdir) / METRICS_FILE
    whole = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]
