"""Real processes that join one run, or end in one line within their bound."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest

import mmjax
from configs.common.errors import PROCESS_LOST, UserError
from mmjax.distributed import joining
from mmjax.distributed.environments import LAUNCHER_VARIABLES, ProcessPlacement
from mmjax.distributed.joining import split_address

HOME = pathlib.Path(mmjax.__file__).resolve().parents[1]
PRINT_DEVICES = """
import os, sys
from mmjax import cli
from mmjax.distributed import devices, joining
def work():
    devices.ensure_cpu_devices()
    joining.initialize_distributed()
    assert "jax" not in sys.modules or "WORLD_SIZE" in os.environ, "a single process starts jax when it wants to"
    import jax
    print(jax.process_count(), jax.process_index(), jax.local_device_count(), jax.device_count())
sys.exit(cli.exit_code(work))
"""


def start(**variables: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PRINT_DEVICES]
    environment = {name: value for name, value in os.environ.items() if name not in {"XLA_FLAGS", *LAUNCHER_VARIABLES}}
    environment.update(PYTHONPATH=str(HOME), JAX_PLATFORMS="cpu", **variables)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(started: "subprocess.Popen[str]") -> tuple[int, str, str]:
    try:
        stdout, stderr = started.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        started.kill()
        started.communicate()
        raise
    return started.returncode, stdout.strip(), stderr.strip()


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def torchrun(rank: int, port: str, **others: str) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)} | others


@pytest.mark.processes
def test_a_machine_without_accelerator_gets_eight_devices_unless_the_user_has_set_their_number():
    default, chosen = start(), start(XLA_FLAGS="--xla_force_host_platform_device_count=3")
    assert finish(default)[:2] == (0, "1 0 8 8")
    assert finish(chosen)[:2] == (0, "1 0 3 3")


@pytest.mark.processes
def test_two_processes_join_in_one_run_although_the_first_starts_last():
    port, devices = free_port(), {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    second = start(**torchrun(1, port, **devices))
    first = start(**torchrun(0, port, **devices))
    assert [finish(one)[:2] for one in (first, second)] == [(0, "2 0 2 4"), (0, "2 1 2 4")]


@pytest.mark.processes
def test_a_process_without_the_others_ends_in_one_line_within_its_bound():
    bound = {"MMJAX_START_TIMEOUT": "3"}
    port = free_port()
    alone = {
        "refused": start(**torchrun(1, port, **bound)),
        "unknown": start(**torchrun(1, port, MASTER_ADDR="no-such-host.invalid", **bound)),
        "first": start(**torchrun(0, free_port(), **bound)),
    }
    ends = {name: finish(one) for name, one in alone.items()}
    for name, address, reason in (
        ("refused", f"127.0.0.1:{port}", "Connection refused"),
        ("unknown", f"no-such-host.invalid:{port}", ""),
    ):
        code, _, errors = ends[name]
        assert code == 2 and len(errors.splitlines()) == 1, errors
        assert f"error: process 1 of 2 can't reach process 0 at {address} within 3 s ({reason}" in errors
        assert errors.endswith("MMJAX_START_TIMEOUT sets the seconds")
    code, _, errors = ends["first"]
    assert code == PROCESS_LOST and len(errors.splitlines()) == 1, errors
    assert errors.startswith("error: process 0 waited 3 s for all 2 processes to join at 127.0.0.1:")


def test_a_name_that_changes_its_address_is_followed(monkeypatch):
    """As that of a pod that is made anew. The first address accepts nothing: its queue of connections is full."""
    monkeypatch.setattr(joining, "LONGEST_ATTEMPT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as silent, socket.socket() as filling:
        port = listening.getsockname()[1]
        silent.bind(("127.0.0.2", port))
        silent.listen(0)
        filling.connect(("127.0.0.2", port))
        addresses, asked = ["127.0.0.2", "127.0.0.1"], list[str]()

        def look_up(host: str, *_: object) -> list[tuple[object, ...]]:
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (addresses.pop(0), port))]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        placement = ProcessPlacement(coordinator=f"first-0:{port}", processes=2, process=1)
        joining.wait_for_coordinator(placement, "first-0", port, 5.0)
    assert asked == ["first-0", "first-0"]


@pytest.mark.parametrize(
    ("address", "parts"),
    [("node1:80", ("node1", 80)), ("[fe80::1]:80", ("fe80::1", 80)), ("10.0.0.1:1", ("10.0.0.1", 1))],
)
def test_addresses(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", "node1", "node1:", ":80", "node1:http", "node1:0", "node1:65536", "fe80::1:80"]
)
def test_wrong_addresses_are_named(address):
    with pytest.raises(UserError, match="the address of process 0 is "):
        split_address(address)
