"""Records of a training step: the dispatched step, its result, and the error of a step that was not finite.

`TrainingRun` returns these records; the training loop and `Trainer.step` pass them on.
"""

import dataclasses
from typing import Any

from configs.common.errors import UserError
from configs.common.short_repr import short_repr
from data.packing.global_batch import GlobalBatch
from sharding.runtime.global_reduction import StepSummary


class NonFiniteStepError(UserError):
    """A loss or a gradient was not finite; the state before that step is kept, and saved if there is a workdir."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """The result of a step.

    Attributes:
        step: Number of the step, from 1.
        losses: Means over the target tokens, or target images, of the step's batch, by name.
        gradient_norm: Norm of the gradients of all units together, before clipping.
    """

    step: int
    losses: dict[str, float]
    gradient_norm: float

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True, kw_only=True)
class DispatchedStep:
    """A step that the devices work on: its number, its summary on the devices, its batch, and the data state before."""

    step: int
    summary: StepSummary
    batch: GlobalBatch
    data_state: dict[str, Any]
