"""The GPUs that programs can be compiled for on a machine that has none.

XLA's GPU compiler needs a description of the device, not the device: memory and schedule are the ones that it would
have there. Nothing runs, and no matmul is tuned by trying. The descriptions (`targets/`) are texts of XLA's
`GpuTargetConfigProto`.
"""

import importlib.util
import pathlib
from typing import Any

from configs.common.errors import UserError
from configs.common.proposals import nearest

FOLDER = pathlib.Path(__file__).with_name("targets")

TARGETS = tuple(sorted(path.stem for path in FOLDER.glob("*.txtpb")))
"""The GPUs that are described; each is the device of the cluster of its name (`configs.clusters`)."""

_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


def missing_plugin() -> str:
    """Why nothing can be compiled for a GPU here, or ""."""
    if any(_is_installed(plugin) for plugin in _PLUGINS):
        return ""
    return "JAX has no CUDA plugin here: pip install -e '.[aot]' (5.5 GB)"


def _is_installed(plugin: str) -> bool:
    try:
        return importlib.util.find_spec(plugin) is not None
    except ModuleNotFoundError:
        return False


def check_target(target: str) -> None:
    """Raises UserError if a target is not described, or nothing can be compiled for a GPU here."""
    if target not in TARGETS:
        raise UserError(
            f"target {target!r} is not described; choose from {', '.join(TARGETS)}{nearest(target, TARGETS)}"
        )
    if reason := missing_plugin():
        raise UserError(reason)


def described_devices(target: str, count: int, devices_per_node: int) -> list[Any]:
    """Descriptions of devices on as many nodes as they take, from which meshes can be made.

    Args:
        target: One of `TARGETS`.
        count: Number of devices.
        devices_per_node: Devices that fast links join.

    Raises:
        UserError: As of `check_target`.
    """
    check_target(target)
    from jax.experimental import topologies

    nodes = -(-count // devices_per_node)
    topology = topologies.get_topology_desc(
        f"{nodes} nodes of {devices_per_node} {target}",
        platform="cuda",
        target_config=(FOLDER / f"{target}.txtpb").read_text(encoding="utf-8"),
        topology=f"1x{nodes}x{devices_per_node}",
    )
    return list(topology.devices[:count])
