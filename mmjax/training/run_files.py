"""The files of a workdir that inference with the run's checkpoints needs, and its plan.

`TrainingRun` writes them when a run starts.
"""

import os
import pathlib

from configs.common.errors import UserError
from configs.common.whole_files import write_whole
from data.text.prompt_format import PromptFormat
from data.text.tokenizer import Tokenizer
from sharding.plans.plan import Plan

PLAN_FILE = "plan.json"
TOKENIZER_FILE = "tokenizer.json"
PROMPT_FORMAT_FILE = "prompt_format.json"


def local_workdir(workdir: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the path of a workdir; raises UserError if its name is a folder in an object store."""
    if "://" in os.fspath(workdir):
        raise UserError(
            f"the workdir {workdir} is not a local folder: give one, and for copies of its checkpoints elsewhere "
            "TrainConfig.remote_checkpoints"
        )
    return pathlib.Path(workdir)


def write_run_files(workdir: pathlib.Path, plan: Plan, tokenizer: Tokenizer, prompt_format: PromptFormat) -> None:
    """Writes the plan, the tokenizer and the prompt format; makes the folder if it is not there."""
    plan.save(workdir / PLAN_FILE)
    write_whole(workdir / TOKENIZER_FILE, tokenizer.to_json())
    write_whole(workdir / PROMPT_FORMAT_FILE, prompt_format.to_json())
