"""Saves steps 1 and 2, and kills itself with SIGKILL while 2 is being written; run by test_checkpoint."""

import os
import pathlib
import signal
import sys

from mmjax.training.checkpoints.discovery import UNFINISHED_MARK
from mmjax.training.checkpoints.manager import CheckpointManager
from tests.mmjax.training import short_runs as runs


def main(directory: pathlib.Path) -> None:
    engine = runs.engine("one")
    checkpoints = CheckpointManager(directory, runs.MODEL)
    state = engine.initial_state()
    checkpoints.save(1, engine, state, {"batches": 1})
    checkpoints.wait()
    checkpoints.save(2, engine, state, {"batches": 2})
    while not (directory / "2").exists():
        if any(directory.glob(f"2-*{UNFINISHED_MARK}/parameters/*")):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
