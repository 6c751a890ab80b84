"""One of some processes that train on eight devices together; run by test_checkpoints.

It trains two steps, saves and evaluates, also with the backbone alone training; or it goes on from the checkpoints of
other numbers of processes. What it saw goes to a file.
"""

import pathlib
import pickle
import sys
from collections.abc import Iterator

import jax
import numpy as np

from data.packing.global_batch import GlobalBatch
from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.engine.engine import Engine
from mmjax.training.evaluation import AnswerScore, evaluate_answers
from sharding.runtime.pipeline import TrainState
from tests.mmjax.training import short_runs as runs
from tests.tiny_model import tiny_batch

TRAINABLE = {"all": ("all",), "backbone": ("backbone",)}
"""With the backbone alone, some processes have no device of a unit that trains."""


def main(rank: int, port: str, processes: int, task: str, directory: pathlib.Path) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=processes, process_id=rank)
    assert jax.process_count() == processes and jax.device_count() >= 8
    seen = dict(save(directory / str(processes)) if task == "save" else resume(directory, processes))
    (directory / f"{task}-{processes}-{rank}.pickle").write_bytes(pickle.dumps(seen))
    jax.distributed.shutdown()


def save(directory: pathlib.Path) -> Iterator[tuple[str, dict]]:
    """By what trains: losses, the state that was saved, and the score."""
    for name, trainable in TRAINABLE.items():
        engine = runs.engine("spread", trainable)
        state, losses = runs.run(engine, engine.initial_state(), range(2))
        checkpoints = CheckpointManager(directory / name, runs.MODEL)
        checkpoints.save(2, engine, state, {"batches": 2})
        yield name, {"losses": losses, "state": runs.local_arrays(state), "score": score(engine, state)}
        checkpoints.close()


def resume(directory: pathlib.Path, processes: int) -> Iterator[tuple[tuple[str, str], dict]]:
    """By what trains and the number of processes that saved: the state that was restored, and the next losses."""
    for name, trainable in TRAINABLE.items():
        engine = runs.engine("spread", trainable)
        for saved in sorted(folder.name for folder in directory.iterdir() if folder.is_dir()):
            checkpoints = CheckpointManager(directory / saved / name, runs.MODEL)
            state, data, step = checkpoints.restore(engine)
            assert (data, step) == ({"batches": 2}, 2)
            restored = runs.local_arrays(state)
            _, losses = runs.run(engine, state, range(2, 4))
            yield (name, saved), {"losses": losses, "state": restored}
            checkpoints.close()


def score(engine: Engine, state: TrainState) -> AnswerScore:
    """Of two batches."""
    batches = [
        GlobalBatch(
            arrays=arrays,
            sample_ids=np.zeros((8, 1), np.int32),
            real_and_capacity={},
            targets=int((arrays["backbone"]["weights"] > 0).sum()),
        )
        for arrays in (tiny_batch(runs.MODEL, seed=seed) for seed in (7, 8))
    ]
    return evaluate_answers(engine, state, batches)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], pathlib.Path(sys.argv[5]))
