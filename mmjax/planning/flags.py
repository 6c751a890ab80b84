"""Flags that `mmjax.plan` and `mmjax.simulate` share, and the planner's problem that they describe."""

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
_DATA = flags.DEFINE_string("data", "", "Described data for a model: a file of configs/data; default: what suits it.")
_ROWS = flags.DEFINE_integer("rows", 0, "Rows of the global batch; default: the configuration's, for a model 1,920.", 0)
_TRAINABLE = flags.DEFINE_list("trainable", ["all"], "Parts of a model that train, or all, or projectors.")
_PROFILE = flags.DEFINE_string("profile", "", "Profile (python -m mmjax.profile) to cost layers by, not a roofline.")
_OTHER_DEVICE = flags.DEFINE_bool("allow_other_device", False, "Take a profile of other hardware than the cluster's.")

MODEL_ROWS = 1920  # DistTrain's global batch


def problem_from_flags(devices: int = 0, given: "Mapping[str, FixedRanks] | None" = None) -> "PlanningProblem":
    """The problem that the command line describes; raises UserError for an unknown cluster, file, part or rank.

    Args:
        devices: How many, if the command line does not say; 0 for a node's.
        given: Sequence and expert ranks by module.
    """
    config = _configuration()
    from configs.clusters import find_cluster
    from mmjax.planning.problem import make_problem, with_global_batch, workload_statistics

    cluster = find_cluster(_CLUSTER.value)
    count = _DEVICES.value or devices or cluster.devices_per_node
    profile = _profile(cluster) if _PROFILE.value else None
    if _ROWS.value:
        config = with_global_batch(config, _ROWS.value)
    return make_problem(config, workload_statistics(config), cluster, count, profile, given)


def _profile(cluster: "ClusterConfig") -> "Profile":
    """The profile of the command line; the cluster's peak stands in for one that does not know its own."""
    from configs.clusters import cluster_of_device_kind
    from sharding.costs.profiled import Profile

    found = Profile.load(_PROFILE.value)
    if not _OTHER_DEVICE.value and cluster_of_device_kind(found.device_kind) is not cluster:
        found.check_device(cluster.device_kinds[0])
    return dataclasses.replace(found, peak_flops=found.peak_flops or cluster.peak_flops)


def _configuration() -> Any:
    """A workload, or a training run, by what the configuration binds."""
    cli.parse_gin("models/mllm_72b.gin")
    from configs import architectures, workloads

    if cli.is_bound("TrainConfig.source"):
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
