"""One of several processes that train together on eight of their devices; run by test_several_processes.

It trains five steps on one plan, saving after two, restores that on another plan, and trains the three again. What it
saw goes to a file: losses, and its part of the state when it was saved and when it was restored.
"""

import pathlib
import pickle
import sys

import jax

from mmjax.training.checkpoints.manager import CheckpointManager
from tests.mmjax.training import short_runs as runs


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
    _, again = runs.run(swapped, state, range(2, 5))
    checkpoints.close()
    seen = {
        "losses": [*first, *later],
        "again": list(again),
        "saved": saved,
        "restored": restored,
        "data": (data, step),
    }
    (directory / f"{rank}.pickle").write_bytes(pickle.dumps(seen))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4]))
