"""Flags of a planning problem, which `mmjax.plan` and `mmjax.simulate` share."""

import dataclasses

from configs.cost_effects import EFFECT_NAMES, EffectName
from mmjax import cli
from mmjax.planning.cluster_files import DEFAULT_CLUSTER

MODEL_ROWS = 1920
"""Rows of the global batch of a model without a workload: DistTrain's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemArguments(cli.GinArguments):
    """Flags of a planning problem: a configuration and a cluster."""

    cluster: str = cli.flag(
        "",
        "Name of a cluster (configs/clusters.py), or a gin file that describes one, or its name in configs/hardware; "
        f"without the flag, {DEFAULT_CLUSTER}.",
        metavar="CLUSTER",
    )
    devices: int | None = cli.flag(
        None, "Devices of the cluster; without the flag a node's, or the plan's.", metavar="N", parse=cli.integer(1)
    )
    data: str = cli.flag(
        "",
        "Described data for a model: a gin file, or its name in configs/data.",
        metavar="FILE",
    )
    batch_rows: int | None = cli.flag(
        None,
        f"Rows of the global batch; without the flag, the configuration's, or {MODEL_ROWS:,}.",
        metavar="N",
        parse=cli.integer(1),
    )
    batch_samples: int | None = cli.flag(
        None,
        "Samples of a step instead of rows; they are grouped into rows.",
        metavar="N",
        parse=cli.integer(1),
    )
    grouping: str = cli.flag(
        "",
        "Grouping of samples into rows: a DataConfig.grouping, or auto to compare several, which is also what "
        "--batch_samples takes of described data.",
        metavar="NAME",
    )
    trainable: tuple[str, ...] = cli.flag(
        (),
        "Parts of a model that train, or all, or projectors; without the flag, all.",
        metavar="PARTS",
        parse=cli.list_of(str),
    )
    profile: str = cli.flag(
        "",
        "Profile (python -m mmjax.profile) to cost layers by; without the flag, the analytic costs.",
        metavar="FILE",
    )
    allow_other_device: bool = cli.flag(False, "Accepts a profile of other hardware than the cluster's.")
    hops: str = cli.flag(
        "",
        "What hops occupy: asynchronous no device, rendezvous the devices at both ends, as between processes; auto the "
        "latter where there are more devices than a node has. Without the flag, the plan's, else auto.",
        metavar="TIMING",
        parse=cli.one_of("auto", "asynchronous", "rendezvous"),
    )
    without: tuple[EffectName, ...] | None = cli.flag(
        None,
        f"Effects to leave out of analytic costs, separated by commas: {', '.join(EFFECT_NAMES)}. Without the flag, "
        "the plan's, else none.",
        metavar="EFFECTS",
        parse=cli.list_of(cli.one_of(*EFFECT_NAMES)),
    )
