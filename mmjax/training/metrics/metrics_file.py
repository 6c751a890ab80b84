"""`metrics.jsonl`, the file with the numbers of a run: a JSON line for each report, in the order of steps.

The writer appends to it, the page of a run and the choice of a plan read it.
"""

import json
import os
import pathlib
from typing import Any

from configs.common.errors import UserError
from configs.common.strict_json import read_json_lines
from configs.common.whole_files import write_whole

METRICS_FILE = "metrics.jsonl"


def read_metrics(workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`, oldest first; none without the file.

    A last line that a killed run left half-written is not among them.

    Raises:
        UserError: Another line is not a JSON object with a step; the message names it.
    """
    path, lines = pathlib.Path(workdir) / METRICS_FILE, []
    # A mean over nothing is not a number.
    for number, values in read_json_lines(path, finite=False):
        if not isinstance(values, dict) or type(values.get("step")) is not int or values["step"] < 0:
            raise UserError(f"{path}:{number} is no JSON object with a step; remove the line")
        lines.append(values)
    return lines


def drop_later_metrics(workdir: pathlib.Path, step: int) -> list[dict[str, Any]]:
    """Leaves in `metrics.jsonl` only the whole lines up to a step, and returns them; the file is replaced at once."""
    kept = [line for line in read_metrics(workdir) if line["step"] <= step]
    write_whole(workdir / METRICS_FILE, "".join(json.dumps(line) + "\n" for line in kept))
    return kept
