"""Notes when the ops of a step are launched, and when each device has finished them, without changing the step.

Nothing in the step waits for anything else than without it: threads wait for arrays that the ops return, one for the
programs of each device and one for what it receives, in the order of the schedule. The engine times single steps with
an `OpRecorder`, for measured timelines.
"""

import contextlib
import functools
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pallas_kernels.varying import make_varying
from sharding.runtime.executor import Executor
from sharding.runtime.stages.compilation import abstract_arrays
from sharding.runtime.stages.compiled_pipeline import CompiledPipeline
from sharding.runtime.stages.definition import BackwardResult, ForwardResult
from sharding.runtime.stages.mesh_programs import MeshPrograms
from sharding.runtime.stages.programs import StagePrograms
from sharding.schedules.ops import TRANSFERS, PipelineOp

_SWITCH_INTERVAL = 1e-4
"""Seconds after which the launching thread lets one that waits run; Python's 5 ms are longer than many ops."""

_Waiting = tuple[PipelineOp, jax.Array]


class OpRecorder:
    """A callback of `Executor.step` that records one step; leaving it waits for the step.

        with OpRecorder(executor, devices) as recorder:
            state, summary = executor.step(state, batch, recorder)

    Args:
        executor: The executor that runs the step.
        devices: The devices that the plan's numbers index.

    Attributes:
        launched: By op of this process, when its launch began, in seconds since the recorder was entered.
        finished: By op and number of the device, when the device had finished it. Where a device receives in a
            transfer, when all had arrived. Devices that an op gives no array to are absent.
        failure: Why the record is incomplete; the step itself is not affected.
    """

    def __init__(self, executor: Executor, devices: Sequence[jax.Device]) -> None:
        self.launched: dict[PipelineOp, float] = {}
        self.finished: dict[PipelineOp, dict[int, float]] = {}
        self._numbers = {device: number for number, device in enumerate(devices)}
        self._queues: dict[tuple[int, bool], queue.SimpleQueue[_Waiting | None]] = {}
        self._threads: list[threading.Thread] = []
        self.failure: Exception | None = None
        with self._keeping_failure():
            _compile_marks(executor)

    def __enter__(self) -> "OpRecorder":
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL)
        self._begin = time.perf_counter()
        self._launch = 0.0  # when the launch of the next op begins
        return self

    def __call__(self, op: PipelineOp, outputs: Any) -> None:
        """Hands the arrays of an op that was just launched to the threads."""
        if self.failure is not None:
            return
        self.launched[op], self.finished[op] = self._launch, {}
        with self._keeping_failure():
            for array in _arrays_to_wait_for(outputs):
                for shard in array.addressable_shards:
                    self._queue(self._numbers[shard.device], op.kind in TRANSFERS).put((op, shard.data))
        self._launch = self._now()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for waiting in self._queues.values():
            waiting.put(None)
        if error is None:
            for thread in self._threads:
                thread.join()
        sys.setswitchinterval(self._switch_interval)

    @contextlib.contextmanager
    def _keeping_failure(self) -> Iterator[None]:
        """Keeps an error of the recording from the step, which other processes train too."""
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error

    def _now(self) -> float:
        return time.perf_counter() - self._begin

    def _queue(self, device: int, receives: bool) -> "queue.SimpleQueue[_Waiting | None]":
        """The queue of a device's programs, or of what it receives; it starts with a thread of its own."""
        key = (device, receives)
        if key not in self._queues:
            self._queues[key] = queue.SimpleQueue()
            # A daemon, so that a second Ctrl-C leaves at once.
            thread = threading.Thread(target=self._wait, args=(device, self._queues[key]), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self._queues[key]

    def _wait(self, device: int, waiting: "queue.SimpleQueue[_Waiting | None]") -> None:
        with self._keeping_failure():
            while (item := waiting.get()) is not None:
                op, array = item
                array.block_until_ready()
                self.finished[op][device] = self._now()


def _arrays_to_wait_for(outputs: Any) -> Iterator[jax.Array]:
    """Selects, from the arrays that an op returned, ones that no later op donates, and no two from one program.

    All arrays of a program are ready at once, so one of them is enough; each array of a transfer has a program of its
    own.
    """
    if isinstance(outputs, ForwardResult):
        kept, donated = (outputs.outputs, outputs.residuals), outputs.losses
    elif isinstance(outputs, BackwardResult):
        kept, donated = outputs.input_gradients, outputs.parameter_gradients
    elif isinstance(outputs, list):
        yield from (array for array in outputs if array is not None)
        return
    else:
        kept, donated = outputs, None
    if arrays := jax.tree.leaves(kept):
        yield arrays[0]
    elif donated is not None:
        array = _smallest(donated)
        yield _mark(array.sharding.mesh, _normalized(array.sharding))(array)


def _normalized(sharding: NamedSharding) -> P:
    """An equal spec for the same layout, however it is written: without axes of size 1 and trailing dimensions."""
    axes = [((entry,) if isinstance(entry, str) else entry or ()) for entry in sharding.spec]
    split = [tuple(axis for axis in entry if sharding.mesh.shape[axis] > 1) or None for entry in axes]
    while split and split[-1] is None:
        split.pop()
    return P(*split)


def _smallest(tree: Any) -> Any:
    return min(jax.tree.leaves(tree), key=lambda array: array.size)


@functools.cache
def _mark(mesh: Mesh, spec: P) -> Any:
    """A program that reads one number of an array on each device, to wait for where the array itself is donated."""

    def first(array: jax.Array) -> jax.Array:
        number = lax.slice(array, (0,) * array.ndim, (1,) * array.ndim).reshape(1)
        return make_varying(number, mesh.axis_names)

    return jax.jit(jax.shard_map(first, mesh=mesh, in_specs=spec, out_specs=P(mesh.axis_names)))


def _compile_marks(executor: Executor) -> None:
    """Compiles `_mark` for the stages whose programs return nothing but donated arrays: nobody is fed by them."""
    for pipeline_replica in (
        pipeline_replica for stage in executor.stages.values() for pipeline_replica in stage.pipeline_replicas
    ):
        programs = pipeline_replica.largest
        if not pipeline_replica.is_local:
            continue
        if _returns_losses_alone(programs):
            _compile_mark(abstract_arrays(jax.eval_shape(programs.zero_losses), programs.loss_specs, programs.mesh))
        if _returns_gradients_alone(programs):
            shapes = jax.eval_shape(programs.zero_gradients)
            _compile_mark(abstract_arrays(shapes, programs.gradient_specs, programs.mesh))


def _returns_losses_alone(programs: MeshPrograms) -> bool:
    """Whether a forward returns its losses alone; the losses of a compiled pipeline are not donated."""
    is_last = isinstance(programs, StagePrograms) and not programs.has_backward and not programs.output_shapes
    return is_last and bool(programs.loss_names)


def _returns_gradients_alone(programs: MeshPrograms) -> bool:
    """Whether nothing but gradients of parameters comes from a program of backwards, or of wgrads."""
    if isinstance(programs, CompiledPipeline):
        return programs.backward is not None and not programs.differentiated_inputs
    assert isinstance(programs, StagePrograms)
    returns_nothing_else = not programs.differentiated_inputs or programs.split_backward is not None
    return programs.has_backward and returns_nothing_else


def _compile_mark(donated: Any) -> None:
    array = _smallest(donated)
    mesh, spec = array.sharding.mesh, _normalized(array.sharding)
    abstract = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))
    _mark(mesh, spec).lower(abstract).compile()
