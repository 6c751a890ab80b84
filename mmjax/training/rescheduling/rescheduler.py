"""Times a step now and then, computes the order of its ops anew in another thread, and swaps it between two steps.

Every process gathers the times of all processes, computes the order by itself, and compares its result with the others
at a step that is fixed by the step that was timed. So they swap together, whichever of them was ready first.
"""

import collections
import concurrent.futures
import dataclasses
import hashlib
import logging
from collections.abc import Mapping
from types import TracebackType

import jax

from configs.common.errors import UserError
from mmjax.training.engine.engine import Engine
from mmjax.training.rescheduling.settings import Rescheduling
from sharding.runtime.coordination import exchange_texts
from sharding.schedules.named.registry import find_schedule
from sharding.schedules.ops import Schedule
from sharding.simulation.measured.rescheduling import Reconsidered, expected_seconds, reconsider_order
from sharding.simulation.timeline import Timeline

_LOG = logging.getLogger(__name__)

STEPS_TO_COMPUTE = 8
"""Number of steps that run while the order is computed, which takes seconds for thousands of devices."""

_KEPT = "the order in force"
_FAILED = "failed: "


class ReschedulingError(UserError):
    """The order of ops could not be computed anew; the message names the processes and the reason."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderSwap:
    """A swap of the order of a run's ops.

    Attributes:
        step: The last step in the order before.
        measured_step: The step whose ops were timed.
        before, after: Seconds of the forwards and backwards of a step in the order before and in the new one, both
            predicted from the measured seconds of their ops.
        same_sums: Whether losses and gradients are summed in the same order as before, so that they have the same bits.
    """

    step: int
    measured_step: int
    before: float
    after: float
    same_sums: bool


@dataclasses.dataclass(frozen=True)
class _Pending:
    """The computation of an order in another thread: its outcome, and a digest to compare it with other processes'."""

    measured_step: int
    outcome: "concurrent.futures.Future[tuple[Reconsidered, str]]"


class Rescheduler:
    """Computes the order of an engine's ops anew; leaving it ends its thread.

    Args:
        engine: The model on its plan.
        settings: Settings of the timed steps; None to time no step.
        first_step: Number of steps done; steps are timed from `settings.interval` steps later on.
        patience: Seconds to wait for the other processes.
    """

    def __init__(self, engine: Engine, settings: Rescheduling | None, first_step: int, patience: float) -> None:
        self._engine, self._settings, self._first_step, self._patience = engine, settings, first_step, patience
        self._threads = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="rescheduling")
        self._pending: _Pending | None = None
        self._expected: float | None = None
        if settings and not find_schedule(engine.plan.schedule).reads_seconds:
            if jax.process_index() == 0:
                _LOG.warning(
                    "TrainConfig.rescheduling changes nothing: the order of the schedule %r does not depend on the "
                    "seconds of ops; those of 'interleaved' and 'colocated' do",
                    engine.plan.schedule,
                )
            self._settings = None
        if self._settings:
            self._expected = expected_seconds(engine.schedule)

    def __enter__(self) -> "Rescheduler":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._pending = None
        self._threads.shutdown(cancel_futures=True)

    def records(self, step: int) -> bool:
        """Whether the ops of a step are to be timed."""
        return self._settings is not None and (step - self._first_step) % self._settings.interval == 0

    def reconsider(self, step: int, timeline: Timeline) -> None:
        """Begins to compute the order anew from a step that was timed, whose timeline all processes have gathered."""
        assert self._settings
        engine, tolerance = self._engine, self._settings.tolerance
        schedule, expected = engine.schedule, self._expected

        def compute() -> tuple[Reconsidered, str]:
            reconsidered = reconsider_order(engine.resolved, schedule, timeline, expected, tolerance)
            return reconsidered, _digest(reconsidered.new_order.schedule) if reconsidered.new_order else _KEPT

        self._pending = _Pending(step, self._threads.submit(compute))

    def swap(self, step: int) -> OrderSwap | None:
        """Lets the steps after this one run in the new order, if it is time and all processes have found the same.

        All processes call this after every step.

        Raises:
            ReschedulingError: Some process could not compute it.
            MissingProcessError: A process does not take part within `patience`.
        """
        pending = self._pending
        if not self._settings or not pending:
            return None
        if step < pending.measured_step + min(STEPS_TO_COMPUTE, self._settings.interval - 1):
            return None
        self._pending = None
        error = pending.outcome.exception()  # waits for it
        said = f"{_FAILED}{type(error).__name__}: {error}" if error else pending.outcome.result()[1]
        texts = exchange_texts("the next order of ops", said, self._patience)
        if failed := {process: text for process, text in texts.items() if text.startswith(_FAILED)}:
            raise ReschedulingError(_describe_failure(pending.measured_step, failed)) from error
        if len(set(texts.values())) > 1:
            if jax.process_index() == 0:
                said = _describe_disagreement(pending.measured_step, texts)
                _LOG.warning("the order of ops stays as it is: %s", said)
            return None
        return self._follow(step, pending.measured_step, pending.outcome.result()[0])

    def _follow(self, step: int, measured_step: int, reconsidered: Reconsidered) -> OrderSwap | None:
        self._expected = reconsidered.expected
        if not (new := reconsidered.new_order):
            return None
        self._engine.set_schedule(new.schedule)
        if jax.process_index() == 0:
            _LOG.warning(
                "after step %d ops run in another order: by what they took in step %d, forwards and backwards take "
                "%.4g s instead of %.4g s; %s",
                step,
                measured_step,
                new.after,
                new.before,
                "all results keep their bits" if new.same_sums else "sums over microbatches change in rounding",
            )
        return OrderSwap(
            step=step, measured_step=measured_step, before=new.before, after=new.after, same_sums=new.same_sums
        )


def _digest(schedule: Schedule) -> str:
    """Returns a digest that two schedules share only if they are the same."""
    text = "\n".join(f"{op} {op in schedule.bundled}" for op in schedule.ops)
    return hashlib.sha256(text.encode()).hexdigest()


def _describe_failure(step: int, failed: Mapping[int, str]) -> str:
    process, text = min(failed.items())
    more = f", and {len(failed) - 1} more processes" if len(failed) > 1 else ""
    return (
        f"process {process}{more} could not compute the order of ops from step {step}: {text.removeprefix(_FAILED)}; "
        "set TrainConfig.rescheduling to None to keep the order of the plan"
    )


def _describe_disagreement(step: int, texts: Mapping[int, str]) -> str:
    """Describes how many different orders the processes have found."""
    (_, most), *_ = collections.Counter(texts.values()).most_common()
    return (
        f"from step {step}, {len(texts)} processes have computed {len(set(texts.values()))} different ones, {most} of "
        "them the same; let all hosts have the same processors and versions of NumPy"
    )
