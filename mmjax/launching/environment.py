"""The environment variables that place each process of a run on this host; `local_processes.py` sets them."""

import os
import re
import socket

from mmjax.distributed.devices import HOST_DEVICES_FLAG, has_accelerator
from mmjax.distributed.environments import LAUNCHER_VARIABLES

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port of the loopback interface that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def process_environment(rank: int, processes: int, devices: int | None, port: int, slot: int) -> dict[str, str]:
    """Returns the variables of this process, with the variables that place one process in the run.

    Variables of other launchers are left out: a shell in an allocation of Slurm has a count of 1, for example.

    Args:
        rank: Number of the process, from 0.
        processes: Number of processes.
        devices: Number of devices of each process: emulated CPU devices on a host without accelerators, else the next
            accelerators of the host. None leaves the choice to jax.
        port: Port of jax's coordination service, in process 0; it listens on the loopback interface only.
        slot: Number of the process's share of the host's devices, from 0.
    """
    variables = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    if processes > 1:
        address = f"{LOOPBACK}:{port}"
        variables |= {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_COORDINATOR_BIND_ADDRESS": address,
            "JAX_NUM_PROCESSES": str(processes),
            "JAX_PROCESS_ID": str(rank),
        }
    if devices is None:
        return variables
    if has_accelerator():
        first = slot * devices
        return variables | {"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(first, first + devices)))}
    others = re.sub(rf"{HOST_DEVICES_FLAG}=\S+", "", variables.get("XLA_FLAGS", ""))
    return variables | {"XLA_FLAGS": f"{others} {HOST_DEVICES_FLAG}={devices}".strip()}
