"""A run of eight steps with a checkpoint at every second; run by test_failing_saves in a process of its own.

The disk is full from before the checkpoint of step 2 until its failure is reported; from before that of step 6 on, the
folder may not be written to. Prints what was said and what there is as JSON.
"""

import contextlib
import dataclasses
import json
import logging
import pathlib
import sys

import jax

from mmjax.training.checkpoints.discovery import saved_steps
from mmjax.training.checkpoints.manager import CheckpointNotWrittenError
from mmjax.training.metrics.progress import NullProgress
from mmjax.training.trainer import Trainer
from tests.mmjax.training.trainer_runs import CONFIG
from tests.process_limits import read_only, small_files


class Warnings(logging.Handler):
    """Keeps what is logged; the first warning of a checkpoint ends what is on the stack."""

    def __init__(self, until_first_failure: contextlib.ExitStack) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        self._until_first_failure = until_first_failure

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        if "was not written" in self.messages[-1]:
            self._until_first_failure.close()


def main(workdir: pathlib.Path) -> None:
    full_disk, denied = contextlib.ExitStack(), contextlib.ExitStack()
    warnings = Warnings(full_disk)
    logging.getLogger().addHandler(warnings)
    config = dataclasses.replace(
        CONFIG, steps=8, checkpoint_interval=2, evaluation_interval=2, sample_questions=0, sample_images=0
    )

    def on_evaluation(trainer: Trainer) -> None:
        assert trainer.checkpoints
        if trainer.steps_done == 2:
            full_disk.enter_context(small_files())
        elif trainer.steps_done == 6:
            trainer.checkpoints.wait()
            denied.enter_context(read_only(workdir / "checkpoints"))

    trainer = Trainer(config, workdir=workdir)
    error = ""
    try:
        with denied:
            trainer.fit(NullProgress(), on_evaluation=on_evaluation)
    except CheckpointNotWrittenError as failure:
        error = str(failure)
    trainer.close()
    steps = saved_steps(workdir / "checkpoints")
    print(json.dumps({"warnings": warnings.messages, "error": error, "steps": steps, "done": trainer.steps_done}))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 1)
    main(pathlib.Path(sys.argv[1]))
