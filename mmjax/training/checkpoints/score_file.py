"""The held-out accuracy of the steps that were evaluated, in a file beside the checkpoints.

The trainer adds an accuracy after each evaluation; retention keeps the best by it.
"""

import json
import logging
import pathlib

from configs.common.errors import UserError
from configs.common.whole_files import write_whole
from mmjax.training.checkpoints.json_files import read_json_object

_LOG = logging.getLogger(__name__)

SCORE_FILE = "scores.json"
"""File beside the checkpoints: `{"accuracy": {"<step>": accuracy}}`, of every evaluated step."""


def read_scores(directory: pathlib.Path) -> dict[int, float]:
    """Accuracy by step; none without the file, nor, after a warning, where it holds something else."""
    path = directory / SCORE_FILE
    if not path.exists():
        return {}
    try:
        return {int(step): float(score) for step, score in read_json_object(path)["accuracy"].items()}
    except (UserError, KeyError, AttributeError, TypeError, ValueError) as error:
        _LOG.warning("%s is left out, no checkpoint counts as evaluated: %s", path, error)
        return {}


def write_scores(directory: pathlib.Path, scores: dict[int, float]) -> None:
    """Replaces the file; a failure is a warning, for the metrics have the scores too."""
    path = directory / SCORE_FILE
    try:
        write_whole(path, json.dumps({"accuracy": {str(step): score for step, score in sorted(scores.items())}}))
    except OSError as error:
        _LOG.warning("%s is not written: %s", path, error)
