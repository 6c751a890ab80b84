"""The jobs for Slurm and Kubernetes: their variables place each process, and their scripts resume and go back.

.ci/lint_examples.sh checks them by the schemas of Kubernetes, shellcheck and hadolint.
"""

import json
import os
import pathlib
import subprocess
from typing import Any

import pytest
import yaml

from configs.common.errors import USAGE_ERROR
from mmjax.distributed.environments import ProcessPlacement
from mmjax.distributed.placement import find_placement
from mmjax.distributed.variables import Variables

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
NODES = 8


def documents(name: str) -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all((EXAMPLES / "kubernetes" / name).read_text())}


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["template"]["spec"]["containers"]
    return only


def place(job: dict[str, Any], index: int, annotations: dict[str, str]) -> ProcessPlacement | None:
    """The place of a pod, whose variables are those of its container and the index that Kubernetes sets."""
    variables = {"JOB_COMPLETION_INDEX": str(index)}
    for variable in container(job)["env"]:
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        variables[variable["name"]] = (
            annotations[field.removeprefix("metadata.annotations['").removesuffix("']")] if field else variable["value"]
        )
    return find_placement(Variables(variables))


def test_the_pods_of_the_jobset_find_the_first_one():
    jobset = documents("jobset.yaml")["JobSet"]
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    annotations = {
        "jobset.sigs.k8s.io/jobset-name": jobset["metadata"]["name"],
        "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
        "jobset.sigs.k8s.io/replicatedjob-replicas": str(replicated["replicas"]),
        "jobset.sigs.k8s.io/job-index": "0",
    }
    port = container(job)["ports"][0]["containerPort"]
    assert job["completions"] == job["parallelism"] == NODES and jobset["spec"]["failurePolicy"]["maxRestarts"]
    assert [place(job, index, annotations) for index in range(NODES)] == [
        ProcessPlacement(coordinator=f"first-nodes-0-0.first:{port}", processes=NODES, process=index)
        for index in range(NODES)
    ]


def test_the_pods_of_the_indexed_job_find_the_first_one_by_the_service():
    service, job = (documents("indexed_job.yaml")[kind] for kind in ("Service", "Job"))
    name, spec = job["metadata"]["name"], job["spec"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": name}
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert spec["completions"] == spec["parallelism"] == NODES
    port = container(spec)["ports"][0]["containerPort"]
    assert [place(spec, index, {}) for index in range(NODES)] == [
        ProcessPlacement(coordinator=f"{name}-0.{service['metadata']['name']}:{port}", processes=NODES, process=index)
        for index in range(NODES)
    ]


def programs(folder: pathlib.Path, **scripts: str) -> dict[str, str]:
    """An environment whose PATH has these programs first."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}


def run(command: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def pod_command(kind: str, workdir: pathlib.Path) -> list[str]:
    """What the container of a job runs; the summary there is that of a run that has trained to its end."""
    if kind == "JobSet":
        spec = documents("jobset.yaml")[kind]["spec"]["replicatedJobs"][0]["template"]["spec"]
    else:
        spec = documents("indexed_job.yaml")[kind]["spec"]
    write_summary(workdir, "")
    return [*container(spec)["command"], container(spec)["args"][0], str(workdir)]


def write_summary(workdir: pathlib.Path, stopped_by: str) -> None:
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "summary.json").write_text(json.dumps({"stopped_by": stopped_by}))


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["JobSet", "Job"])
def test_a_pod_resumes_once_there_is_a_checkpoint(tmp_path, kind):
    command = pod_command(kind, tmp_path / "run")
    environment = programs(tmp_path, mmjax='echo "$@"')
    expected = f"train --gin_file=/runs/first.gin --workdir={tmp_path}/run"
    (tmp_path / "run/checkpoints/4-1.unfinished").mkdir(parents=True)
    (tmp_path / "run/checkpoints/set_aside/8").mkdir(parents=True)
    assert run(command, environment).stdout == f"{expected}\n"
    (tmp_path / "run/checkpoints/4").mkdir()
    assert run(command, environment).stdout == f"{expected} --resume\n"


@pytest.mark.processes
@pytest.mark.parametrize(("kind", "waits"), [("JobSet", ""), ("Job", "sleep 60\n")])
def test_a_pod_succeeds_only_at_the_end_of_the_training(tmp_path, kind, waits):
    command = pod_command(kind, tmp_path / "run")
    for status, waited in ((0, ""), (2, ""), (1, waits), (75, waits)):
        ended = run(command, programs(tmp_path, mmjax=f"exit {status}", sleep='echo sleep "$@"'))
        assert (ended.returncode, ended.stdout) == (status, waited)
    (tmp_path / "run/summary.json").unlink()
    assert run(command, programs(tmp_path, mmjax="exit 0")).returncode == 75


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["JobSet", "Job"])
def test_a_pod_that_is_told_to_end_lets_the_run_save_and_fails(tmp_path, kind):
    command = pod_command(kind, tmp_path / "run")
    write_summary(tmp_path / "run", "SIGTERM")
    # It says that it trains when there is what to kill: what still slept would keep the pipe open.
    training = "/bin/sleep 60 & trap 'kill $!; echo saved; exit 0' TERM; echo training; wait"
    pod = subprocess.Popen(command, env=programs(tmp_path, mmjax=training), stdout=subprocess.PIPE, text=True)
    assert pod.stdout and pod.stdout.readline() == "training\n"
    pod.terminate()
    assert pod.communicate(timeout=90)[0] == "saved\n" and pod.returncode == 75


def test_jobs_end_for_good_after_a_usage_error():
    jobset = documents("jobset.yaml")["JobSet"]["spec"]
    (rule,) = jobset["failurePolicy"]["rules"]
    assert rule == {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    for job in (jobset["replicatedJobs"][0]["template"]["spec"], documents("indexed_job.yaml")["Job"]["spec"]):
        (rule,) = job["podFailurePolicy"]["rules"]
        assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [USAGE_ERROR]
        assert rule["onExitCodes"]["containerName"] == container(job)["name"]
        assert job["template"]["spec"]["restartPolicy"] == "Never", "without it Kubernetes takes no podFailurePolicy"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("status", "stopped_by", "restarts", "requeued", "saved"),
    [
        (0, "", 0, False, "4"),
        (0, "SIGTERM", 3, True, "4"),
        (75, "", 0, True, "4-1.unfinished"),
        (75, "", 20, False, "4"),
        (2, "SIGTERM", 0, False, "4"),
    ],
)
def test_the_slurm_job_goes_back_to_the_queue(tmp_path, status, stopped_by, restarts, requeued, saved):
    (tmp_path / "run/checkpoints" / saved).mkdir(parents=True)
    write_summary(tmp_path / "run", stopped_by)
    (tmp_path / "run/run.lock").touch()
    environment = programs(tmp_path, srun=f'echo "$@"; exit {status}', scontrol='echo scontrol "$@"')
    environment |= {"SLURM_RESTART_COUNT": str(restarts), "SLURM_JOB_ID": "7"}
    ended = run(["bash", str(EXAMPLES / "slurm/train.sbatch"), "run.gin", str(tmp_path / "run")], environment)
    first, *others = ended.stdout.splitlines()
    assert first.endswith(f"-m mmjax.train --gin_file=run.gin --workdir={tmp_path}/run" + " --resume" * saved.isdigit())
    assert ended.returncode == status and others == ["scontrol requeue 7"] * requeued
    assert (tmp_path / "run/run.lock").exists() == (restarts == 0)
