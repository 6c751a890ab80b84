"""Devices and launchers: what the environment asks for, and what jax then reports in real processes."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest

import mmjax
from configs.errors import UserError
from mmjax.cli import distributed as process

HOME = pathlib.Path(mmjax.__file__).resolve().parents[1]
PRINT_DEVICES = """
import os, sys
from mmjax.cli import distributed
distributed.ensure_cpu_devices()
distributed.initialize_distributed()
assert "jax" not in sys.modules or os.environ.get("JAX_NUM_PROCESSES"), "a single process starts jax when it wants to"
import jax
print(jax.process_count(), jax.process_index(), jax.local_device_count(), jax.device_count())
"""


@pytest.fixture
def environment(monkeypatch):
    """Sets variables of an environment without launchers or settings of jax."""
    for variable in (*process.TASK_COUNT_VARIABLES, *process.DISTRIBUTED_VARIABLES, "XLA_FLAGS", "JAX_PLATFORMS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NPROC", process.CPU_THREADS)  # start_distributed sets it: undone here

    def update(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return update


def start(**variables: str) -> subprocess.Popen:
    command = [sys.executable, "-c", PRINT_DEVICES]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment.update(PYTHONPATH=str(HOME), JAX_PLATFORMS="cpu", **variables)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output(started: subprocess.Popen) -> str:
    try:
        stdout, stderr = started.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        started.kill()
        raise
    assert started.returncode == 0, stderr
    return stdout.strip()


def test_a_machine_without_accelerator_gets_eight_devices():
    assert output(start()) == "1 0 8 8"


def test_the_users_own_device_count_stays():
    assert output(start(XLA_FLAGS="--xla_force_host_platform_device_count=3")) == "1 0 3 3"


def test_other_xla_flags_are_kept(environment):
    environment(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_dump_to=x")
    process.ensure_cpu_devices(4)
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=x --xla_force_host_platform_device_count=4"


@pytest.mark.parametrize("platforms", ["cuda", "cuda,cpu", "tpu"])
def test_an_accelerator_that_was_asked_for_keeps_the_flags(environment, platforms):
    environment(JAX_PLATFORMS=platforms)
    process.ensure_cpu_devices()
    assert "XLA_FLAGS" not in os.environ


def test_two_processes_named_by_jax_variables_become_one_run():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    variables = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "SLURM_NTASKS": "2"}
    started = [
        start(**variables, JAX_PROCESS_ID=str(index), XLA_FLAGS="--xla_force_host_platform_device_count=2")
        for index in range(2)
    ]
    assert [output(one) for one in started] == ["2 0 2 4", "2 1 2 4"]


@pytest.mark.parametrize("variable", process.TASK_COUNT_VARIABLES)
def test_several_tasks_that_cannot_be_joined_are_refused(environment, variable):
    environment(JAX_PLATFORMS="cpu", **{variable: "4"})
    with pytest.raises(
        UserError, match=rf"{variable} = 4.*can't be joined.*4 separate runs in one workdir are refused"
    ):
        process.initialize_distributed()


@pytest.mark.parametrize("variable", process.TASK_COUNT_VARIABLES)
def test_a_launcher_of_one_task_is_one_process(environment, variable):
    environment(**{variable: "1"})
    assert process.launched_tasks() == (1, variable)
    process.initialize_distributed()


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "but not JAX_NUM_PROCESSES and JAX_PROCESS_ID"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "but not JAX_COORDINATOR_ADDRESS"),
        (
            {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"},
            "JAX_PROCESS_ID = 2 is not in 0..1",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "two", "JAX_PROCESS_ID": "0"},
            "JAX_NUM_PROCESSES is 'two'",
        ),
        (
            {
                "JAX_COORDINATOR_ADDRESS": "a:1",
                "JAX_NUM_PROCESSES": "1",
                "JAX_PROCESS_ID": "0",
                "SLURM_NTASKS": "4",
            },
            "JAX_NUM_PROCESSES = 1, but SLURM_NTASKS = 4",
        ),
    ],
)
def test_jax_variables_that_disagree_are_refused(environment, variables, reason):
    environment(**variables)
    with pytest.raises(UserError, match=reason):
        process.distributed_arguments()
