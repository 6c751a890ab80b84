"""One of several processes that train together on eight of their devices; run by test_several_processes.

It trains five steps on one plan, saving after two, restores that on another plan, trains the three again and records
another twice, the second time with a process that cannot. What it saw goes to a file: losses, its part of the state
when it was saved and when it was restored, the recorded timeline and why there is no second one.
"""

import pathlib
import pickle
import sys

import jax
import pytest

from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.step_recorder import StepNotRecordedError, StepRecorder
from sharding.runtime.pipeline import TrainState
from sharding.simulation.timeline_json import timeline_document
from tests.mmjax.training import short_runs as runs
from tests.tiny_model import tiny_batch


def main(rank: int, port: str, processes: int, directory: pathlib.Path) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=processes, process_id=rank)
    assert jax.process_count() == processes
    train(rank, directory)
    jax.distributed.shutdown()


def train(rank: int, directory: pathlib.Path) -> None:
    spread, swapped = runs.engine("spread"), runs.engine("swapped")
    checkpoints = CheckpointManager(directory / "checkpoints", runs.MODEL)
    state, first = runs.run(spread, spread.initial_state(), range(2))
    saved = runs.local_arrays(state)
    checkpoints.save(2, spread, state, {"batches": 2})
    state, later = runs.run(spread, state, range(2, 5))
    checkpoints.wait()
    state, data, step = checkpoints.restore(swapped)
    restored = runs.local_arrays(state)
    state, again = runs.run(swapped, state, range(2, 5))
    recorder, state = record(swapped, state, spoiled=False)
    timeline = timeline_document(recorder.timeline())
    recorder, _ = record(swapped, state, spoiled=rank == 1)
    with pytest.raises(StepNotRecordedError) as not_recorded:
        recorder.timeline()
    checkpoints.close()
    seen = {
        "losses": [*first, *later],
        "again": list(again),
        "saved": saved,
        "restored": restored,
        "data": (data, step),
        "timeline": timeline,
        "not_recorded": str(not_recorded.value),
    }
    (directory / f"{rank}.pickle").write_bytes(pickle.dumps(seen))


def record(engine: Engine, state: TrainState, spoiled: bool) -> tuple[StepRecorder, TrainState]:
    """Records a step; a spoiled recording is given what is no array."""
    recorder, placed = StepRecorder(engine), engine.place_batch(tiny_batch(runs.MODEL, seed=5), 5)
    with recorder.record(vars(state), placed) as callback:
        state, _ = engine.executor.step(
            state, placed, (lambda op, _: callback(op, ["nothing"])) if spoiled else callback
        )
    return recorder, state


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4]))
