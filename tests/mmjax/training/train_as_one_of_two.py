"""One of two processes with four devices each that train together; run by test_processes.

It trains five steps on one plan, saving after two, restores that on another plan, trains the three again and records
another. What it saw goes to a file: losses, its part of the state when it was saved and when it was restored, and the
timeline of the recorded step.
"""

import pathlib
import pickle
import sys

import jax

from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.engine.step_recorder import StepRecorder
from sharding.simulation.timeline_json import timeline_document
from tests.compilation import quick_compilation
from tests.mmjax.training import short_runs as runs
from tests.tiny_model import tiny_batch


def main(rank: int, port: str, directory: pathlib.Path) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    assert (len(jax.local_devices()), len(jax.devices())) == (4, 8)
    with quick_compilation():
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
    recorder, placed = StepRecorder(swapped), swapped.place_batch(tiny_batch(runs.MODEL, seed=5), 5)
    with recorder.record(vars(state), placed) as callback:
        swapped.executor.step(state, placed, callback)
    timeline = timeline_document(recorder.timeline())
    checkpoints.close()
    seen = {
        "losses": [*first, *later],
        "again": list(again),
        "saved": saved,
        "restored": restored,
        "data": (data, step),
        "timeline": timeline,
    }
    (directory / f"{rank}.pickle").write_bytes(pickle.dumps(seen))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]))
