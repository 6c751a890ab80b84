"""Metrics writers for experiment trackers: Weights & Biases and MLflow. Each needs an extra of mmjax.

    from __gin__ import dynamic_registration
    from mmjax.training import config
    from mmjax.training.metrics import trackers
    config.TrainConfig.writers = (@trackers.WandbWriter, @trackers.MlflowWriter)
    trackers.WandbWriter.project = "shapes"

The id of a tracker's run is kept in the workdir, so that a resumed run continues it. A resumed run sends the numbers
that a killed one had not sent yet, and does not send numbers again that the tracker has.
"""

import json
import logging
import math
import pathlib
import secrets
import time
from collections.abc import Mapping
from typing import Any

from configs.common.errors import UserError
from configs.common.strict_json import read_json_file
from configs.common.whole_files import write_whole
from data.extras import missing_extra
from mmjax.training.metrics.interface import MetricsWriter, RunStart
from mmjax.training.metrics.metrics_file import read_metrics
from mmjax.training.metrics.parameters import Parameter

_LOG = logging.getLogger(__name__)

TRACKERS_FOLDER = "trackers"
DEFAULT_PROJECT = "mmjax"

_MLFLOW_BATCH = 100  # parameters, or metrics, that one request may log
_MLFLOW_TEXT = 500  # characters of a parameter's value that all stores take


class TrackedRun:
    """The tracker's run of a workdir, and the numbers that it certainly has; kept in a small file of the workdir.

    Attributes:
        run_id: The tracker's id of the run; empty until it is known.
        is_new: Whether the run starts now.
        open_folder: Name of the folder that a session writes to, until that session is closed; empty for none.
    """

    def __init__(self, start: RunStart, tracker: str) -> None:
        self._path = start.workdir / TRACKERS_FOLDER / f"{tracker}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        state = read_json_file(self._path) if start.resumed_step and self._path.exists() else {}
        self.run_id: str = state.get("run_id", "")
        self.is_new = not self.run_id
        self.open_folder: str = state.get("open_folder", "")
        self._step: int = state.get("step", -1)
        self._names: set[str] = set(state.get("names", ()))

    def missing(self, step: int, scalars: Mapping[str, float]) -> dict[str, float]:
        """Returns the numbers of a step that the tracker does not certainly have."""
        if step < self._step:
            return {}
        had = self._names if step == self._step else set()
        return {name: float(value) for name, value in scalars.items() if name not in had}

    def confirm(self, step: int, scalars: Mapping[str, float]) -> None:
        """Notes that the tracker has these numbers."""
        self._names = set(scalars) | (self._names if step == self._step else set())
        self._step = step

    def save(self) -> None:
        """Writes the file, which is replaced at once."""
        state = {"run_id": self.run_id, "open_folder": self.open_folder}
        write_whole(self._path, json.dumps(state | {"step": self._step, "names": sorted(self._names)}))


def write_earlier_metrics(writer: MetricsWriter, start: RunStart) -> None:
    """Writes the metrics up to the resumed step again: a killed run may not have sent all of them."""
    for line in read_metrics(start.workdir) if start.resumed_step else ():
        if line["step"] <= start.resumed_step:
            scalars = {name: math.nan if value is None else value for name, value in line.items() if name != "step"}
            writer.write(line["step"], scalars)


class WandbWriter(MetricsWriter):
    """Sends metrics to Weights & Biases, with the configuration as the run's config.

    Args:
        start: The start of the run.
        project: Name of the project.
        entity: User or team; by default the one that is logged in.
        mode: `online`, or `offline` to write to the folder `wandb` of the workdir, which `wandb sync` uploads; by
            default the mode in the environment variable WANDB_MODE, else `online`.

    Raises:
        UserError: The package is not installed, nobody is logged in, or the server cannot be reached.
    """

    def __init__(
        self, start: RunStart, project: str = DEFAULT_PROJECT, entity: str | None = None, mode: str | None = None
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise missing_extra("WandbWriter", "wandb", error) from error
        if mode not in (None, "online", "offline"):
            raise UserError(f"WandbWriter.mode is {mode!r}; choose online or offline")
        self._tracked = TrackedRun(start, "wandb")
        _set_aside(start.workdir / "wandb", self._tracked.open_folder)
        self._tracked.run_id = self._tracked.run_id or secrets.token_hex(4)
        try:
            self._run = wandb.init(
                project=project,
                entity=entity,
                id=self._tracked.run_id,
                name=start.workdir.absolute().name,
                # The service that writes may be a parent process's (WANDB_SERVICE), with another working directory.
                dir=str(start.workdir.absolute()),
                config=dict(start.parameters),
                mode=mode,  # pyright: ignore[reportArgumentType]
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"WandbWriter: {reason}; log in (wandb login), or set WandbWriter.mode = 'offline' to write to "
                f"{start.workdir}/wandb"
            ) from error
        self._tracked.open_folder = pathlib.Path(self._run.dir).parent.name if self._run.offline else ""
        self._tracked.save()
        write_earlier_metrics(self, start)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs the numbers that Weights & Biases lacks; it ignores numbers of a step before its last."""
        if missing := self._tracked.missing(step, scalars):
            self._run.log(missing, step=step)
            self._tracked.confirm(step, missing)  # saved when the run has ended: until then they may get lost

    def close(self) -> None:
        """Waits until everything is sent, and ends the run."""
        self._run.finish()
        self._tracked.open_folder = ""
        self._tracked.save()


def _set_aside(folder: pathlib.Path, name: str) -> None:
    """Renames the offline folder of a killed session, which lacks its last metrics: all are written anew to another."""
    if name and (folder / name).is_dir():
        (folder / name).rename(folder / f"incomplete-{name}")


class MlflowWriter(MetricsWriter):
    """Sends metrics to an MLflow tracking server or database, with the configuration as the run's parameters.

    Args:
        start: The start of the run.
        experiment: Name of the experiment, which is created if it does not exist.
        tracking_uri: The server or store; by default the environment variable MLFLOW_TRACKING_URI, else the file
            `mlflow.db` of the workdir, which `mlflow ui --backend-store-uri sqlite:///PATH` shows.

    Raises:
        UserError: The package is not installed, the store cannot be reached, or it does not have the run to continue.
    """

    def __init__(self, start: RunStart, experiment: str = DEFAULT_PROJECT, tracking_uri: str | None = None) -> None:
        try:
            import mlflow
            from mlflow.entities import Metric
            from mlflow.environment_variables import MLFLOW_TRACKING_URI
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            raise missing_extra("MlflowWriter", "mlflow", error) from error
        self._error, self._metric = MlflowException, Metric
        self._tracked = TrackedRun(start, "mlflow")
        self._pending: list[tuple[int, dict[str, float]]] = []
        uri = tracking_uri or MLFLOW_TRACKING_URI.get() or f"sqlite:///{start.workdir.absolute() / 'mlflow.db'}"
        try:
            self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
            if self._tracked.is_new:
                self._create_run(start, experiment)
            else:
                self._client.update_run(self._tracked.run_id, status="RUNNING")
            self._log_parameters(start.parameters)
        except MlflowException as error:
            raise UserError(f"MlflowWriter.tracking_uri {uri}: {str(error).strip().splitlines()[0]}") from error
        self._tracked.save()
        write_earlier_metrics(self, start)

    def _create_run(self, start: RunStart, experiment: str) -> None:
        existing_experiment = self._client.get_experiment_by_name(experiment)
        experiment_id = (
            existing_experiment.experiment_id if existing_experiment else self._client.create_experiment(experiment)
        )
        run = self._client.create_run(experiment_id, run_name=start.workdir.absolute().name)
        self._tracked.run_id = run.info.run_id

    def _log_parameters(self, parameters: Mapping[str, Parameter]) -> None:
        """Logs the parameters that the run does not have; MLflow keeps the first value of each."""
        from mlflow.entities import Param

        logged = self._client.get_run(self._tracked.run_id).data.params
        missing = [Param(key, str(value)[:_MLFLOW_TEXT]) for key, value in parameters.items() if key not in logged]
        for first in range(0, len(missing), _MLFLOW_BATCH):
            self._client.log_batch(self._tracked.run_id, params=missing[first : first + _MLFLOW_BATCH])

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs the numbers that MLflow lacks; if the store fails, they are sent with the numbers of a later step."""
        if missing := self._tracked.missing(step, scalars):
            self._pending.append((step, missing))
            self._send_pending()

    def _send_pending(self) -> None:
        while self._pending:
            step, scalars = self._pending[0]
            now = int(time.time() * 1000)
            metrics = [self._metric(name, value, now, step) for name, value in scalars.items()]
            try:
                self._client.log_batch(self._tracked.run_id, metrics=metrics)
            except self._error as error:
                _LOG.warning("MLflow: the metrics of step %d are not sent yet: %s", step, error)
                return
            self._tracked.confirm(step, scalars)
            self._tracked.save()
            self._pending.pop(0)

    def close(self) -> None:
        """Sends the numbers that could not be sent before, and marks the run as finished."""
        self._send_pending()
        if self._pending:
            _LOG.warning("MLflow lacks the metrics of %d reports, which metrics.jsonl has", len(self._pending))
        try:
            self._client.set_terminated(self._tracked.run_id)
        except self._error as error:
            _LOG.warning("MLflow: the run could not be marked as finished: %s", error)
