"""The measured timeline of a training step, of all processes together.

The executor calls it after every op of a step that `Trainer.timeline` or the training loop records.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Float

from configs.common.errors import UserError
from mmjax.training.engine.engine import Engine
from sharding.runtime.coordination import wait_for_processes
from sharding.runtime.exchange.exchange_hop import ExchangeHop
from sharding.runtime.executor import OpCallback
from sharding.runtime.hops import PermuteHop
from sharding.runtime.op_recorder import OpRecorder
from sharding.runtime.pipeline import PlacedBatch
from sharding.schedules.ops import GLOBAL_NORM, PipelineOp
from sharding.simulation.measured.measured_timeline import measured_timeline, replica_count, replicas_that_finish
from sharding.simulation.timeline import Timeline

_LAUNCHED, _FINISHED = 0, 1


class StepNotRecordedError(UserError):
    """The recording of a step is incomplete; the step itself was trained like any other."""


class StepRecorder:
    """Records one training step of an engine.

        recorder = StepRecorder(engine)
        with recorder.record(vars(state), placed_batch) as callback:
            state, summary = engine.executor.step(state, placed_batch, callback)
        recorder.timeline()

    The step runs the same programs on the same arrays as any other, so its results have the same bits. It begins when
    the devices have nothing else to do, and is waited for.

    Attributes:
        capacities: `PlacedBatch.capacities` of the batch of the step.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._schedule = engine.schedule
        graph = self._schedule.op_graph.stage_graph
        self._replicas = graph.pipeline_replicas
        self._devices = engine.resolved.devices
        self._recorder: OpRecorder | None = None
        self.capacities: Mapping[str, tuple[int | None, ...]] = {}

    @contextlib.contextmanager
    def record(self, state: Mapping[str, Any], batch: PlacedBatch) -> Iterator[OpCallback]:
        """Records the step that runs within, with the callback given.

        Args:
            state: The fields of the state that the step is called with; they are waited for first.
            batch: The batch that it is called with.
        """
        jax.block_until_ready((state, batch))
        self.capacities = batch.capacities
        with OpRecorder(self._engine.executor, self._engine.devices) as self._recorder:
            yield self._recorder

    def timeline(self) -> Timeline:
        """Returns the timeline of the recorded step, the same on all processes, which call this together.

        Raises:
            StepNotRecordedError: The recording failed on some process; names it.
        """
        assert self._recorder is not None
        times = self._gather_times(self._recorder)
        counts = [replica_count(self._devices, op, self._replicas) for op in self._schedule.ops]
        launched, finished = (
            {
                op: times[kind, number, :count]
                for number, (op, count) in enumerate(zip(self._schedule.ops, counts, strict=True))
            }
            for kind in (_LAUNCHED, _FINISHED)
        )
        hops = [
            hop for channel in self._engine.executor.channels for hop in (channel.activation_hop, channel.gradient_hop)
        ]
        # Programs that permute take their turn among a device's programs; device_put copies beside them.
        rendezvous = any(isinstance(hop, PermuteHop | ExchangeHop) for hop in hops)
        return measured_timeline(self._devices, self._schedule, launched, finished, rendezvous)

    def _gather_times(self, recorder: OpRecorder) -> Float[np.ndarray, "2 n i"]:
        """Gathers from all processes when each op was launched and each replica had finished it."""
        failed = np.array(recorder.failure is not None)
        replicas = [replicas_that_finish(self._devices, op, self._replicas) for op in self._schedule.ops]
        times = _by_replica(self._schedule.ops, replicas, recorder)
        if jax.process_count() > 1:
            # A process whose recording failed comes here too, so that none waits for it in vain.
            wait_for_processes("the gathering of a measured step")
            failed, times = multihost_utils.process_allgather((failed, times))
            times = _merge(times, self._schedule.ops.index(GLOBAL_NORM))
        if np.any(failed):
            reason = f": {recorder.failure}" if recorder.failure else ""
            raise StepNotRecordedError(f"process {int(np.argmax(failed))} could not record the step{reason}")
        return times


def _by_replica(
    ops: tuple[PipelineOp, ...], replicas: Sequence[Sequence[Sequence[int]]], recorder: OpRecorder
) -> Float[np.ndarray, "2 n i"]:
    """Returns when this process launched each op and each replica had finished it; NaN for times that it has not seen.

    Args:
        ops: The ops.
        replicas: The devices that finish each of them, by replica.
        recorder: The times that this process has recorded.
    """
    times = np.full((2, len(ops), max(map(len, replicas))), np.nan)
    for number, (op, devices) in enumerate(zip(ops, replicas, strict=True)):
        finished = recorder.finished.get(op, {})
        for replica, held in enumerate(devices):
            ends = [finished[device] for device in held if device in finished]
            if ends:
                times[:, number, replica] = recorder.launched[op], max(ends)
    return times


def _merge(by_process: Float[np.ndarray, "_ 2 n i"], norm: int) -> Float[np.ndarray, "2 n i"]:
    """Converts the times of all processes to the clock of the first process that has devices of the plan.

    The clocks of hosts differ, and so do the moments at which processes begin the step. All devices end global_norm
    together, so each process's times are shifted so that this end coincides with the first process's.
    """
    ends = by_process[:, _FINISHED, norm, 0]
    aligned = by_process - (ends - ends[np.argmax(np.isfinite(ends))])[:, None, None, None]
    return np.fmax.reduce(aligned, axis=0)
