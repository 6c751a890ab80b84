"""The folder of a run as an object: its metrics, plan, configuration, sample answers and checkpoints."""

import dataclasses
import datetime
import functools
import os
import pathlib
from typing import TYPE_CHECKING, Any

from configs.errors import UserError
from configs.strict_json import read_json_file, read_json_lines
from mmjax.training.metrics.metrics_file import METRICS_FILE, read_metrics
from mmjax.training.metrics.step_timeline_file import MeasuredStep, read_step_timeline
from mmjax.training.run_files import PLAN_FILE
from sharding.frames import make_frame
from sharding.plans.plan import Plan

if TYPE_CHECKING:
    import pandas

SUMMARY_FILE, STARTS_FILE, CONFIG_FILE = "summary.json", "starts.jsonl", "operative.gin"
SAMPLES_FOLDER, CHECKPOINTS_FOLDER, NOT_TAKEN_FILE = "samples", "checkpoints", "not_taken.txt"
REFUSAL_FILES = ("unreadable.jsonl", "oversized.jsonl")


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint of a run.

    Attributes:
        step: Steps that it has behind it.
        time: When it was finished.
        size: Bytes of its files.
    """

    step: int
    time: datetime.datetime
    size: int


class Run:
    """A run's folder, whether the run is finished, going on, or was killed. Everything is read when it is asked for.

        run = open_run("runs/short")
        run.to_frame()["loss/backbone"].plot()

    In a notebook it shows its main charts.

    Attributes:
        workdir: The folder.
    """

    def __init__(self, workdir: pathlib.Path) -> None:
        self.workdir = workdir

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.workdir.absolute().name

    @functools.cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The numbers of each reported step by name, in the order of steps; losses are means since the report before.

        What was written about a step at several times is one entry.
        """
        by_step: dict[int, dict[str, Any]] = {}
        for line in read_metrics(self.workdir):
            by_step.setdefault(line["step"], {}).update(line)
        return [by_step[step] for step in sorted(by_step)]

    def to_frame(self) -> "pandas.DataFrame":
        """The metrics as a pandas frame, a row for each reported step; raises UserError if pandas is not installed."""
        names = list(dict.fromkeys(name for line in self.metrics for name in line))
        return make_frame({name: [line.get(name) for line in self.metrics] for name in names})

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """How the newest start of the run ended; empty while it is going on, and if it was killed."""
        path = self.workdir / SUMMARY_FILE
        if not path.is_file() or (self.starts and path.stat().st_mtime < _timestamp(self.starts[-1]["time"])):
            return {}
        return _require_object(read_json_file(path), str(path))

    @functools.cached_property
    def starts(self) -> list[dict[str, Any]]:
        """When, where and at which step the run was started and resumed, with the versions of packages."""
        return _read_lines(self.workdir / STARTS_FILE)

    @functools.cached_property
    def plan(self) -> Plan | None:
        """The plan of its newest start; None without one."""
        path = self.workdir / PLAN_FILE
        return Plan.load(path) if path.is_file() else None

    @functools.cached_property
    def measured_step(self) -> MeasuredStep | None:
        """A step of the run, and its measured timeline; None if none is recorded; UserError if the file is damaged."""
        return read_step_timeline(self.workdir)

    @property
    def config_text(self) -> str:
        """The configuration with all values that were used, as a gin file; empty for a run from Python."""
        path = self.workdir / CONFIG_FILE
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    @functools.cached_property
    def answers(self) -> list[dict[str, Any]]:
        """The sample answers and images of every evaluation, each with its step; images are files of `samples/`."""
        found = []
        for path in sorted((self.workdir / SAMPLES_FOLDER).glob("step_*.jsonl")):
            found += [{"step": int(path.stem.removeprefix("step_")), **line} for line in _read_lines(path)]
        return found

    @property
    def why_no_answers(self) -> str:
        """Why a run that should have sample answers has none; empty if nothing was in the way."""
        path = self.workdir / SAMPLES_FOLDER / NOT_TAKEN_FILE
        return path.read_text(encoding="utf-8").strip() if path.is_file() else ""

    def sample_file(self, name: str) -> pathlib.Path:
        """The path of an image that an answer names."""
        return self.workdir / SAMPLES_FOLDER / name

    @functools.cached_property
    def refusals(self) -> list[dict[str, str]]:
        """The samples that the data pipeline refused: `cause` (unreadable or oversized), `source`, `key`, `reason`."""
        return [
            {"cause": pathlib.Path(name).stem, **line}
            for name in REFUSAL_FILES
            for line in _read_lines(self.workdir / name)
        ]

    @functools.cached_property
    def checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints in the folder, by step; those that are being written are not among them."""
        folder = self.workdir / CHECKPOINTS_FOLDER
        paths = [path for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
        return [_checkpoint(path) for path in sorted(paths, key=lambda path: int(path.name))]

    def __repr__(self) -> str:
        return f"Run({str(self.workdir)!r})"

    def _repr_html_(self) -> str:
        from mmjax.reporting.run_page import run_fragment

        return run_fragment(self)


def open_run(workdir: str | os.PathLike[str]) -> Run:
    """The run in a folder.

    Raises:
        UserError: The folder is not there, or no run has written to it.
    """
    folder = pathlib.Path(workdir)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give the workdir of a run of mmjax.train")
    if not any((folder / name).exists() for name in (METRICS_FILE, PLAN_FILE, STARTS_FILE)):
        raise UserError(f"{folder} is no run's workdir: it has none of {METRICS_FILE}, {PLAN_FILE} and {STARTS_FILE}")
    return Run(folder)


def _read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file; none without the file."""
    return [_require_object(line, f"{path}:{number}") for number, line in read_json_lines(path)]


def _require_object(document: Any, where: str) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise UserError(f"{where} is no JSON object")
    return document


def _timestamp(time: str) -> float:
    return datetime.datetime.fromisoformat(time).timestamp()


def _checkpoint(path: pathlib.Path) -> CheckpointInfo:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    time = datetime.datetime.fromtimestamp(path.stat().st_mtime).astimezone()
    return CheckpointInfo(int(path.name), time, size)
