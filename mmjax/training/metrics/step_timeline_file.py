"""The file of a workdir with the measured timeline of one of its run's steps.

`StepRecordings` writes it, the page of a run reads it.
"""

import dataclasses
import json
import pathlib

from configs.common.errors import UserError
from configs.common.strict_json import read_json_file
from configs.common.whole_files import write_whole
from sharding.simulation.measured.timeline_json import read_timeline, timeline_document
from sharding.simulation.timeline import Timeline

TIMELINE_FILE = "timeline.json"


@dataclasses.dataclass(frozen=True)
class MeasuredStep:
    """A step of a run, and when each of its ops ran."""

    step: int
    timeline: Timeline


def write_step_timeline(workdir: pathlib.Path, step: int, timeline: Timeline) -> None:
    """Writes the timeline of a step; the file is replaced at once."""
    write_whole(workdir / TIMELINE_FILE, json.dumps({"step": step, **timeline_document(timeline)}))


def read_step_timeline(workdir: pathlib.Path) -> MeasuredStep | None:
    """The step that a run has recorded last; None if it has not yet; raises UserError if the file is damaged."""
    path = workdir / TIMELINE_FILE
    if not path.is_file():
        return None
    document = read_json_file(path)
    try:
        return MeasuredStep(int(document["step"]), read_timeline(document))
    except (ValueError, KeyError, TypeError, UserError) as error:
        raise UserError(f"{path} is no timeline of a step: {error}") from error
