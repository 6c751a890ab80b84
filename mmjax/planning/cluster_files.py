"""The cluster of a planning problem: one of configs/clusters.py, or one that a gin file or a plan describes.

`problem_inputs.py` and the Python interface read it.
"""

import dataclasses
import pathlib
import re

from configs.clusters import CLUSTERS, ClusterConfig, find_cluster
from mmjax import cli

DEFAULT_CLUSTER = "a800"

HARDWARE = "hardware"
"""Folder of the configs package whose files describe clusters."""

_LEAST = {"peak_flops": 1e9, "memory": 1e6, "memory_bandwidth": 1e6, "host_memory": 1e6}
_UNITS = {
    "peak_flops": "FLOP/s: 312 TFLOP/s are 312e12",
    "memory": "bytes: 80 GB are 80e9",
    "memory_bandwidth": "bytes per second: 2 TB/s are 2e12",
    "host_memory": "bytes: 250 GB are 250e9",
}
_LEAST_BANDWIDTH, _MOST_LATENCY = 1e6, 1.0


def cluster_file(cluster: str) -> str:
    """Finds the gin file that describes a cluster; empty for a name of configs/clusters.py, and for an empty name.

    Args:
        cluster: A name, or a gin file: a path, or the name of a file of configs/hardware.

    Raises:
        UserError: There is no such cluster.
    """
    if not cluster or cluster in CLUSTERS:
        return ""
    try:
        return cli.configuration_file(cluster, HARDWARE)
    except cli.UserError as error:
        described = sorted(path.stem for path in (cli.CONFIGS / HARDWARE).glob("*.gin"))
        known = (*CLUSTERS, *described)
        raise cli.UserError(
            f"there is no cluster {cluster!r}; choose from {', '.join(known)}, or give a gin file that describes one"
            f"{cli.nearest(cluster, known)}"
        ) from error


def read_cluster(cluster: str) -> ClusterConfig:
    """Reads the cluster of a name or a gin file, which replaces the bound configuration; raises UserError for none."""
    file = cluster_file(cluster)
    cli.parse_gin((file,) if file else ())
    return configured_cluster(cluster, file)


def configured_cluster(cluster: str, file: str, default: ClusterConfig | None = None) -> ClusterConfig:
    """Returns the cluster that the configuration binds, else the cluster of a name.

    Args:
        cluster: The name of a cluster, unless `file` is given; empty for the default.
        file: The gin file that describes it, which was read; empty for none.
        default: The cluster where none is asked for or bound; None for `DEFAULT_CLUSTER`.

    Raises:
        UserError: There is no such cluster, or its description lacks a field, or has one in another unit.
    """
    fields = dataclasses.fields(ClusterConfig)
    bound = [field.name for field in fields if cli.is_bound(f"ClusterConfig.{field.name}")]
    if not bound:
        if file:
            raise cli.UserError(f"{file} describes no cluster; bind clusters.ClusterConfig as configs/{HARDWARE} does")
        return default if default and not cluster else find_cluster(cluster or DEFAULT_CLUSTER)
    if cluster and not file:
        raise cli.UserError(
            f"--cluster={cluster} is one cluster, and the configuration binds ClusterConfig.{bound[0]} of another; "
            "leave out one of them"
        )
    where = _place(file) if file else "configuration"
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    if missing := [name for name in required if name not in bound]:
        raise cli.UserError(f"{where}: ClusterConfig lacks {', '.join(missing)}; bind a value to each")
    described = cli.configured(ClusterConfig)
    if not described.name.strip():
        raise cli.UserError(f"{where}: ClusterConfig.name is {described.name!r}; give the cluster a name of its own")
    if described.name in CLUSTERS:
        raise cli.UserError(f"{where}: ClusterConfig.name is {described.name!r}, a cluster of mmjax; choose another")
    _check_units(described, where)
    return described


def _check_units(cluster: ClusterConfig, where: str) -> None:
    """Raises UserError for values so small, or latencies so long, that they must be in another unit."""
    for name, least in _LEAST.items():
        if (value := getattr(cluster, name)) < least and (value or name != "host_memory"):
            raise cli.UserError(f"{where}: ClusterConfig.{name} is {value}; it is in {_UNITS[name]}")
    links = {"intra_node": cluster.intra_node, "inter_node": cluster.inter_node, "host_link": cluster.host_link}
    for name, link in links.items():
        if not link:
            continue
        if link.bandwidth < _LEAST_BANDWIDTH:
            raise cli.UserError(
                f"{where}: the bandwidth of ClusterConfig.{name} is {link.bandwidth}; it is in bytes per second in one "
                "direction: 200 Gbit/s are 25e9"
            )
        if link.latency >= _MOST_LATENCY:
            raise cli.UserError(
                f"{where}: the latency of ClusterConfig.{name} is {link.latency}; it is in seconds: 10 us are 10e-6"
            )


def _place(file: str) -> str:
    """Names a file, and the line in which it begins to describe a cluster."""
    lines = pathlib.Path(file).read_text(encoding="utf-8").splitlines()
    line_numbers = [number for number, line in enumerate(lines, 1) if re.match(r"[\w./]*\bClusterConfig\b", line)]
    return f"{file}, line {line_numbers[0]}" if line_numbers else file
