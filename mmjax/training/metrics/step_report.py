"""The report of a window of steps of a run.

The training loop makes one for each window, shows it and gives it to the writers.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from mmjax.training.metrics.flops import model_flops_utilization
from mmjax.training.metrics.step_timer import StepTimes

TokenCounts = Mapping[str, tuple[int, int]]
"""(real, capacity) of patches, frames, tokens or images by module, of one global batch or summed over several."""


def sum_counts(batches: Iterable[TokenCounts]) -> dict[str, tuple[int, int]]:
    """Sum of the counts of several global batches."""
    total: dict[str, tuple[int, int]] = {}
    for counts in batches:
        for module, (real, capacity) in counts.items():
            total_real, total_capacity = total.get(module, (0, 0))
            total[module] = (total_real + real, total_capacity + capacity)
    return total


def padding_fractions(counts: TokenCounts) -> dict[str, float]:
    """Padding of each module's rows as a fraction of their capacity, 0 to 1."""
    return {module: 1.0 - real / capacity if capacity else 0.0 for module, (real, capacity) in counts.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepReport:
    """A window of steps, for the progress display and the metrics files.

    Attributes:
        step: Number of steps done when the window ended.
        losses: Means over the target tokens and target images of the window (`StepWindow`), by name.
        times: Seconds a step, by phase of a step.
        tokens_per_second: Real tokens of the backbone a second.
        padding: Fraction of padding in each module's rows.
        mfu: Model FLOPs divided by the peak of the allocated devices, or None where the peak is not known.
        fp8: Whether that peak is FP8's, as the model has matmuls in it.
        extra_scalars: Any other numbers by name, for the files alone (gradient norm, learning rate).
    """

    step: int
    losses: Mapping[str, float]
    times: StepTimes
    tokens_per_second: float
    padding: Mapping[str, float]
    mfu: float | None = None
    fp8: bool = False
    extra_scalars: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """Every number under one name each, such as `loss/backbone` and `seconds/data`."""
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
    steps: int,
    value_flops: Mapping[str, float],
    device_kinds: Sequence[str],
    backbone: str,
    extra_scalars: Mapping[str, float] | None = None,
    *,
    fp8: bool = False,
) -> StepReport:
    """The report of a window of steps.

    Args:
        step: Number of steps done when the window ended.
        losses: Means over the target tokens and target images of the window (`StepWindow`), by name.
        times: Times of the window, or of its steps since the run was resumed.
        counts: Counts of tokens summed over the window's batches (`sum_counts`).
        steps: Number of steps of the window.
        value_flops: Model FLOPs of each module for one counted token, patch, frame or image, for MFU.
        device_kinds: Kinds of the devices allocated to the run.
        backbone: Name of the module whose real tokens give the throughput.
        extra_scalars: As in `StepReport`.
        fp8: As in `StepReport`.
    """
    real_flops = sum((flops * counts[module][0] / steps for module, flops in value_flops.items()), start=0.0)
    real_tokens, _ = counts[backbone]
    return StepReport(
        step=step,
        losses=losses,
        times=times,
        tokens_per_second=real_tokens / (times.wall * steps),
        padding=padding_fractions(counts),
        mfu=model_flops_utilization(real_flops, times.wall, device_kinds, fp8=fp8),
        fp8=fp8,
        extra_scalars=extra_scalars or {},
    )
