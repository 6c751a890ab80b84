"""One of several processes that train together on eight of their devices; run by test_several_processes.

It trains five steps on one plan, saving after two, restores that on another plan, trains the three again and records
another twice, the second time with a process that cannot. What it saw goes to a file: losses, its part of the state
when it was saved and when it was restored, the recorded timeline and why there is no second one.
"""

import contextlib
import json
import pathlib
import pickle
import shutil
import sys

import jax
import pytest

from configs.common.errors import UserError
from mmjax.training.checkpoints.file_checksums import FILE_LIST, write_file_list
from mmjax.training.checkpoints.json_files import HOST_FILE
from mmjax.training.checkpoints.manager import CheckpointManager, CheckpointNotWrittenError
from mmjax.training.checkpoints.remote_folder import RemoteFolder
from mmjax.training.checkpoints.retention import Retention
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.step_recorder import StepNotRecordedError, StepRecorder
from sharding.runtime.pipeline import TrainState
from sharding.simulation.measured.timeline_json import timeline_document
from tests.mmjax.training import short_runs as runs
from tests.process_limits import small_files


def main(rank: int, port: str, processes: int, directory: pathlib.Path) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=processes, process_id=rank)
    assert jax.process_count() == processes
    train(rank, directory)
    jax.distributed.shutdown()


def train(rank: int, directory: pathlib.Path) -> None:
    spread, swapped = runs.engine("spread"), runs.engine("swapped")
    remote = RemoteFolder(str(directory / "remote"), Retention(newest=1))
    checkpoints = CheckpointManager(directory / "checkpoints", runs.MODEL, remote=remote)
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
    recorder, state = record(swapped, state, spoiled=rank == 1)
    with pytest.raises(StepNotRecordedError) as not_recorded:
        recorder.timeline()
    # One process that cannot write fails the save for all, at once, and the next one is written.
    with small_files(0) if rank == 1 else contextlib.nullcontext():
        checkpoints.save(4, swapped, state, {"batches": 4})
        with pytest.raises(CheckpointNotWrittenError) as not_written:
            checkpoints.wait()
    checkpoints.save(5, swapped, state, {"batches": 5})
    checkpoints.wait_for_remote()
    checkpoints.close()
    # Each process has a folder of its own, as where the hosts share no file system.
    own_folder = directory / (f"apart_{rank}" if rank else "shared")
    apart = CheckpointManager(own_folder, runs.MODEL)
    apart.save(5, swapped, state, {})
    with pytest.raises(CheckpointNotWrittenError) as not_shared:
        apart.wait()
    shutil.copytree(directory / "checkpoints" / "5", own_folder / "5", dirs_exist_ok=True)
    if rank == 1:  # whole, and another checkpoint of the same step
        (own_folder / "5" / HOST_FILE).write_text(json.dumps({"batches": 6}))
        (own_folder / "5" / FILE_LIST).unlink()
        write_file_list(own_folder / "5")
    if rank == 2:  # whole, and not known to process 0
        shutil.copytree(own_folder / "5", own_folder / "6")
    with pytest.raises(UserError) as other_checkpoint:
        apart.restore(spread)
    _, fetched, _ = CheckpointManager(directory / "elsewhere", runs.MODEL, remote=remote).restore(spread)
    seen = {
        "losses": [*first, *later],
        "again": list(again),
        "saved": saved,
        "restored": restored,
        "data": (data, step),
        "fetched": fetched,
        "timeline": timeline,
        "capacities": recorder.capacities,
        "not_recorded": str(not_recorded.value),
        "not_shared": str(not_shared.value),
        "other_checkpoint": str(other_checkpoint.value),
        "not_written": str(not_written.value),
    }
    (directory / f"{rank}.pickle").write_bytes(pickle.dumps(seen))


def record(engine: Engine, state: TrainState, spoiled: bool) -> tuple[StepRecorder, TrainState]:
    """Records a step in which vision skips a microbatch; a spoiled recording is given what is no array."""
    recorder, placed = StepRecorder(engine), engine.place_batch(runs.batch(3), 3)
    with recorder.record(vars(state), placed) as callback:
        state, _ = engine.executor.step(
            state, placed, (lambda op, _: callback(op, ["nothing"])) if spoiled else callback
        )
    return recorder, state


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4]))
