"""The folder of a run as an object, `mmjax.open_run`: metrics, plan, configuration, sample answers and checkpoints."""

import dataclasses
import datetime
import functools
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from configs.common.errors import UserError
from configs.common.shown_text import one_line
from configs.common.strict_json import read_bounded, read_json_file, read_json_lines
from mmjax.reporting import run_records
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
_SAMPLES_NAME = re.compile(r"step_(\d{1,18})", re.ASCII)
_CHECKPOINT_NAME = re.compile(r"\d{1,18}", re.ASCII)


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint of a run.

    Attributes:
        step: Number of updates before it.
        time: Time at which it was finished.
        size: Bytes of its files.
    """

    step: int
    time: datetime.datetime
    size: int


class Run:
    """A run's folder, whether the run is finished, going on, or was killed. Everything is read when it is asked for.

        run = open_run("runs/short")
        run.to_frame()["loss/backbone"].plot()

    In a notebook it shows its main charts (`mmjax.notebook`).

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

        Numbers of one step that were written at several times are one entry.
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
        """The summary of the newest start's end; empty while the run is going on, and if it was killed."""
        path = self.workdir / SUMMARY_FILE
        if not path.is_file() or (self.starts and path.stat().st_mtime < _timestamp(self.starts[-1]["time"])):
            return {}
        summary = run_records.require_object(read_json_file(path), str(path))
        run_records.check_summary(summary, str(path))
        return summary

    @functools.cached_property
    def starts(self) -> list[dict[str, Any]]:
        """When, where and at which step the run was started and resumed, with the versions of packages."""
        return _read_lines(self.workdir / STARTS_FILE, run_records.check_start)

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
        """The configuration with all values that were used, as a gin file; empty for a run from Python.

        It holds the secrets that the run was given; the page hides them.
        """
        return self._text(CONFIG_FILE)

    @functools.cached_property
    def answers(self) -> list[dict[str, Any]]:
        """The sample answers and images of every evaluation, each with its step; images are files of `samples/`."""
        answers = []
        for path in sorted((self.workdir / SAMPLES_FOLDER).glob("step_*.jsonl")):
            if not (named := _SAMPLES_NAME.fullmatch(path.stem)):
                raise UserError(f"{path} is no file of samples: step_ is followed by the number of a step")
            answers += [{**line, "step": int(named[1])} for line in _read_lines(path, run_records.check_answer)]
        return answers

    @property
    def why_no_answers(self) -> str:
        """The reason why a run that should have sample answers has none; empty if there is no such reason."""
        return self._text(SAMPLES_FOLDER, NOT_TAKEN_FILE).strip()

    def sample_file(self, name: str) -> pathlib.Path:
        """The path of an image that an answer names.

        Raises:
            UserError: The name leads out of the folder of samples.
        """
        path = self.workdir / SAMPLES_FOLDER / name
        if not name or name != path.name or "\0" in name:
            raise UserError(f"{one_line(repr(name))} is no name of a file in {self.workdir / SAMPLES_FOLDER}")
        self._require_inside(path)
        return path

    def _text(self, *names: str) -> str:
        """The text of a file of the folder; empty without the file."""
        path = self.workdir.joinpath(*names)
        if not path.is_file():
            return ""
        self._require_inside(path)
        try:
            return read_bounded(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}") from error

    def _require_inside(self, path: pathlib.Path) -> None:
        """Refuses a link out of the workdir: its target would be shown on a page that is passed on."""
        try:
            inside = path.resolve().is_relative_to(self.workdir.resolve())
        except (OSError, RuntimeError):  # links in a circle
            inside = False
        if not inside:
            raise UserError(f"{path} leads out of the workdir; put a copy of the file in its place")

    @functools.cached_property
    def refusals(self) -> list[dict[str, str]]:
        """The samples that the data pipeline refused: `cause` (unreadable or oversized), `source`, `key`, `reason`."""
        return [
            {"cause": pathlib.Path(name).stem, **line}
            for name in REFUSAL_FILES
            for line in _read_lines(self.workdir / name, run_records.check_refusal)
        ]

    @functools.cached_property
    def checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints in the folder, by step, without checkpoints that are being written."""
        folder = self.workdir / CHECKPOINTS_FOLDER
        paths = [path for path in folder.iterdir() if _CHECKPOINT_NAME.fullmatch(path.name)] if folder.is_dir() else []
        return [_checkpoint(path) for path in sorted(paths, key=lambda path: int(path.name))]

    def __repr__(self) -> str:
        return f"Run({str(self.workdir)!r})"


def open_run(workdir: str | os.PathLike[str]) -> Run:
    """Opens the run in a folder.

    Raises:
        UserError: The folder is not there, or no run has written to it.
    """
    folder = pathlib.Path(workdir)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give the workdir of a run of mmjax.train")
    if not any((folder / name).exists() for name in (METRICS_FILE, PLAN_FILE, STARTS_FILE)):
        raise UserError(f"{folder} is no run's workdir: it has none of {METRICS_FILE}, {PLAN_FILE} and {STARTS_FILE}")
    return Run(folder)


def _read_lines(path: pathlib.Path, check: Callable[[Mapping[str, Any], str], None]) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file, each checked; none without the file."""
    records = []
    for number, line in read_json_lines(path):
        records.append(run_records.require_object(line, f"{path}:{number}"))
        check(records[-1], f"{path}:{number}")
    return records


def shown_time(time: str | datetime.datetime) -> str:
    """A date and time, of a record or a file, as it is shown."""
    parsed = datetime.datetime.fromisoformat(time) if isinstance(time, str) else time
    return parsed.isoformat(" ", "seconds")


def _timestamp(time: str) -> float:
    return datetime.datetime.fromisoformat(time).timestamp()


def _checkpoint(path: pathlib.Path) -> CheckpointInfo:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    time = datetime.datetime.fromtimestamp(path.stat().st_mtime).astimezone()
    return CheckpointInfo(int(path.name), time, size)
