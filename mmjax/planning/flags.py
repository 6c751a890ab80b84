"""Flags that `mmjax.plan` and `mmjax.simulate` share, and the planning problem that they describe."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from mmjax import cli

if TYPE_CHECKING:
    from configs.clusters import ClusterConfig
    from sharding.costs.profiled import Profile
    from sharding.planners.fixed_ranks import FixedRanks
    from sharding.planners.problem import PlanningProblem

_CLUSTER = flags.DEFINE_string("cluster", "a800", "Name of a cluster (configs/clusters.py).")
_DEVICES = flags.DEFINE_integer("devices", None, "Devices of the cluster; default: a node's, or the plan's.", 1)
_DATA = flags.DEFINE_string(
    "data", "", "Described data for a model: a file of configs/data; default: one that suits it."
)
_ROWS = flags.DEFINE_integer("rows", 0, "Rows of the global batch; default: the configuration's; 1,920 for a model.", 0)
_TRAINABLE = flags.DEFINE_list("trainable", ["all"], "Parts of a model that train, or all, or projectors.")
_PROFILE = flags.DEFINE_string(
    "profile", "", "Profile (python -m mmjax.profile) to cost layers by; default: a roofline."
)
_OTHER_DEVICE = flags.DEFINE_bool("allow_other_device", False, "Accept a profile of other hardware than the cluster's.")

MODEL_ROWS = 1920
"""Rows of the global batch of a model without a workload: DistTrain's."""


def problem_from_flags(devices: int = 0, fixed_ranks: "Mapping[str, FixedRanks] | None" = None) -> "PlanningProblem":
    """The planning problem that the command line describes.

    Args:
        devices: Number of devices if `--devices` is not given; 0 for that of a node.
        fixed_ranks: Context-parallel and expert ranks by module.

    Raises:
        UserError: An unknown cluster, file, part or rank.
    """
    config = _configuration()
    from configs.clusters import find_cluster
    from mmjax.planning.problem import make_problem, with_global_batch, workload_statistics

    cluster = find_cluster(_CLUSTER.value)
    count = _DEVICES.value or devices or cluster.devices_per_node
    profile = _profile(cluster) if _PROFILE.value else None
    if _ROWS.value:
        config = with_global_batch(config, _ROWS.value)
    return make_problem(config, workload_statistics(config), cluster, count, profile, fixed_ranks)


def _profile(cluster: "ClusterConfig") -> "Profile":
    """The profile of `--profile`; if it does not know the peak of its devices, it gets the cluster's."""
    from configs.clusters import cluster_of_device_kind
    from sharding.costs.profiled import Profile

    profile = Profile.load(_PROFILE.value)
    if not _OTHER_DEVICE.value and cluster_of_device_kind(profile.device_kind) is not cluster:
        profile.check_device(cluster.device_kinds[0])
    return dataclasses.replace(profile, peak_flops=profile.peak_flops or cluster.peak_flops)


def _configuration() -> Any:
    """The training run, workload or model that the configuration binds, a model with described data as a workload."""
    cli.parse_gin("models/mllm_72b.gin")
    from configs import architectures, workloads

    if cli.is_bound("TrainConfig.dataset"):
        from mmjax.training.config import TrainConfig

        return cli.configured(TrainConfig)
    if cli.is_bound("Workload.model"):
        return cli.configured(workloads.Workload)
    from mmjax.planning.problem import default_data_file

    model = cli.configured(architectures.ModelConfig)
    if not cli.is_bound("SyntheticData.kinds"):
        cli.parse_gin("models/mllm_72b.gin", f"data/{_DATA.value or default_data_file(model)}.gin")
        model = cli.configured(architectures.ModelConfig)
    data = cli.configured(workloads.SyntheticData)
    return workloads.Workload(model, data, _ROWS.value or MODEL_ROWS, tuple(_TRAINABLE.value))
