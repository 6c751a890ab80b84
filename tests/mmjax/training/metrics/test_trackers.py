"""Weights & Biases and MLflow themselves, offline: a run that is killed and resumed is one run with each step once.

Their packages are extras of mmjax; without them the tests are skipped.
"""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from configs.common.errors import UserError
from mmjax.training.metrics.interface import RunStart
from mmjax.training.metrics.trackers import MlflowWriter, TrackedRun, WandbWriter
from mmjax.training.metrics.writers import open_metrics_writer

PARAMETERS = {"model.width": 3, "optimizer.learning_rate": 0.5, "plan": "quickstart.json"}

# Writes steps 1 to 5 and is killed; the checkpoint before was that of step 3.
KILLED_RUN = """
import os, signal, sys
from mmjax.training.metrics import trackers
from mmjax.training.metrics.writers import open_metrics_writer
from tests.mmjax.training.metrics.test_trackers import PARAMETERS
name, workdir = sys.argv[1:]
writer = open_metrics_writer(workdir, 0, True, [getattr(trackers, name)], PARAMETERS)
for step in range(1, 6):
    writer.write(step, {"loss": step / 8})
    if step == 3:
        writer.write(step, {"accuracy": 0.5})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def offline(monkeypatch):
    """No server: W&B's offline folder, and MLflow's store of files, which needs to be allowed."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return monkeypatch


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"{package} is not installed: pip install 'mmjax[{package}]'"
    )


def run_and_kill(writer: str, workdir: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_RUN, writer, str(workdir)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def wandb_records(folder: pathlib.Path) -> list:
    """The records of all offline runs in a folder, oldest run first: LevelDB's log format, behind 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    records = []
    for path in sorted(folder.glob("offline-run-*/run-*.wandb")):
        content, position, pending = path.read_bytes(), 7, b""
        while position + 7 <= len(content):
            if 32768 - position % 32768 < 7:
                position += 32768 - position % 32768
                continue
            length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
            pending += content[position + 7 : position + 7 + length]
            position += 7 + length
            if kind in (1, 4):  # whole, or the last part
                records.append(wandb_internal_pb2.Record.FromString(pending))
                pending = b""
    return records


def wandb_history(folder: pathlib.Path) -> list[tuple[int, str, float]]:
    """(step, name, value) of all that was logged, in its order."""
    history = []
    for record in wandb_records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            step = items.pop("_step", record.history.step.num)
            history += [(step, name, value) for name, value in sorted(items.items()) if not name.startswith("_")]
    return history


EVERY_STEP_ONCE = [
    (1, "loss", 0.125),
    (2, "loss", 0.25),
    (3, "accuracy", 0.5),
    (3, "loss", 0.375),
    (4, "loss", 0.5),
    (5, "loss", 0.625),
    (6, "loss", 0.75),
]


def resume_after_step_3(writer) -> None:
    for step in (4, 5, 6):
        writer.write(step, {"loss": step / 8})
    writer.close()


@pytest.mark.processes
@needs("wandb")
def test_wandb_has_each_step_of_a_killed_and_resumed_run_once_in_one_run(offline, tmp_path):
    run_and_kill("WandbWriter", tmp_path)
    resume_after_step_3(open_metrics_writer(tmp_path, 3, True, [WandbWriter], PARAMETERS))
    # Once more from an earlier step, after an orderly end: nothing is sent twice.
    resume_after_step_3(open_metrics_writer(tmp_path, 3, True, [WandbWriter], PARAMETERS))
    assert wandb_history(tmp_path / "wandb") == EVERY_STEP_ONCE
    runs = [record.run for record in wandb_records(tmp_path / "wandb") if record.WhichOneof("record_type") == "run"]
    assert len({run.run_id for run in runs}) == 1 and {run.project for run in runs} == {"mmjax"}
    config = {update.key: json.loads(update.value_json) for run in runs for update in run.config.update}
    assert {name: config[name] for name in PARAMETERS} == PARAMETERS


@needs("wandb")
def test_a_new_run_in_the_same_workdir_is_a_new_run_of_wandb(offline, tmp_path):
    ids = []
    for _ in range(2):
        writer = WandbWriter(RunStart(workdir=tmp_path), project="shapes", mode="offline")
        writer.close()
        ids.append(json.loads((tmp_path / "trackers" / "wandb.json").read_text())["run_id"])
    assert ids[0] != ids[1]
    with pytest.raises(UserError, match="WandbWriter.mode is 'of'"):
        WandbWriter(RunStart(workdir=tmp_path), mode="of")


@needs("wandb")
def test_wandb_writes_to_a_relative_workdir_when_its_service_has_another_working_directory(offline, tmp_path):
    import wandb

    wandb.setup()  # starts the service, unless an earlier test did; it keeps its working directory
    offline.chdir(tmp_path)
    writer = WandbWriter(RunStart(workdir=pathlib.Path("run")), mode="offline")
    writer.write(1, {"loss": 0.125})
    writer.close()
    assert wandb_history(tmp_path / "run" / "wandb") == [(1, "loss", 0.125)]


@pytest.mark.processes
@needs("mlflow")
def test_mlflow_has_each_step_of_a_killed_and_resumed_run_once_in_one_run(offline, tmp_path):
    offline.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")
    workdir = tmp_path / "run"
    run_and_kill("MlflowWriter", workdir)
    # Resumed with one changed parameter, of which MLflow keeps the first value, and a new one.
    changed = PARAMETERS | {"model.width": 4, "seed": 0}
    writer = open_metrics_writer(workdir, 3, True, [MlflowWriter], changed)
    run = mlflow_run(tmp_path)
    assert run.info.status == "RUNNING"
    resume_after_step_3(writer)
    run = mlflow_run(tmp_path)
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert run.data.params == {name: str(value) for name, value in (changed | PARAMETERS).items()}
    assert mlflow_history(tmp_path, ("loss", "accuracy")) == EVERY_STEP_ONCE


@needs("mlflow")
def test_what_mlflow_does_not_take_is_sent_later(offline, tmp_path, caplog):
    offline.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")
    writer = MlflowWriter(RunStart(workdir=tmp_path / "run"))
    writer.write(1, {"loss": 0.125})
    folder = next((tmp_path / "store").glob(f"*/{mlflow_run(tmp_path).info.run_id}"))
    away = folder.rename(tmp_path / "away")
    writer.write(2, {"loss": 0.25})
    assert "metrics of step 2 are not sent yet" in caplog.text
    away.rename(folder)
    writer.write(3, {"loss": 0.375})
    writer.close()
    assert mlflow_history(tmp_path, ("loss",)) == [(1, "loss", 0.125), (2, "loss", 0.25), (3, "loss", 0.375)]


@needs("mlflow")
@needs("sqlalchemy")
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of MLflow 3.17 with SQLAlchemy 2.1
def test_mlflow_writes_to_a_file_of_the_workdir_unless_told_otherwise(offline, tmp_path):
    offline.delenv("MLFLOW_TRACKING_URI", raising=False)
    writer = MlflowWriter(RunStart(workdir=tmp_path, parameters={"model.width": 3}), experiment="shapes")
    writer.write(1, {"loss": 0.125})
    writer.close()
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("shapes").experiment_id])
    assert run.data.metrics == {"loss": 0.125} and run.data.params == {"model.width": "3"}


@needs("mlflow")
def test_a_store_that_cannot_be_used_is_refused_in_one_line(offline, tmp_path):
    with pytest.raises(UserError, match="MlflowWriter.tracking_uri nowhere:///x: ") as caught:
        MlflowWriter(RunStart(workdir=tmp_path), tracking_uri="nowhere:///x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("writer", "package"), [(WandbWriter, "wandb"), (MlflowWriter, "mlflow")])
def test_a_missing_package_is_named_with_its_extra(writer, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"pip install 'mmjax\[{package}\]'"):
        writer(RunStart(workdir=tmp_path))


def test_only_what_a_tracker_lacks_is_sent(tmp_path):
    tracked = TrackedRun(RunStart(workdir=tmp_path), "some")
    tracked.run_id = "id"
    for step, names in ((10, ("loss",)), (20, ("loss",)), (20, ("accuracy",))):
        tracked.confirm(step, dict.fromkeys(names, 1.0))
    tracked.save()
    resumed = TrackedRun(RunStart(workdir=tmp_path, resumed_step=10), "some")
    assert resumed.run_id == "id" and not resumed.is_new
    assert resumed.missing(15, {"loss": 1.0}) == {}
    assert resumed.missing(20, {"loss": 1.0, "accuracy": 1.0, "score": 2}) == {"score": 2.0}
    assert resumed.missing(25, {"loss": 1.0}) == {"loss": 1.0}
    assert TrackedRun(RunStart(workdir=tmp_path), "some").is_new, "a run that does not resume is another one"


def mlflow_run(folder: pathlib.Path):
    """The only run of the store in a folder."""
    from mlflow import MlflowClient

    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    (run,) = client.search_runs([client.get_experiment_by_name("mmjax").experiment_id])
    return run


def mlflow_history(folder: pathlib.Path, names: tuple[str, ...]) -> list[tuple[int, str, float]]:
    """(step, name, value) of all that was logged, by step."""
    from mlflow import MlflowClient

    client, run_id = MlflowClient(os.environ["MLFLOW_TRACKING_URI"]), mlflow_run(folder).info.run_id
    return sorted(
        (metric.step, name, metric.value) for name in names for metric in client.get_metric_history(run_id, name)
    )
