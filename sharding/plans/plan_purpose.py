"""The purpose of a plan: a model, the rows of a step, their data and a cluster; and where another step differs.

Planners write the purpose into plans, and commands warn where a run or a simulation differs from the purpose.
"""

import dataclasses
import math
import pathlib
import reprlib
from collections.abc import Mapping
from typing import Any, Literal

from configs.clusters import CLUSTERS, ClusterConfig, cluster_of_device_kind
from configs.common.short_repr import short_repr
from configs.cost_effects import EffectName
from sharding.plans.plan_error import PlanError
from sharding.plans.text.bounds import MAX_DEVICES, MAX_ROWS
from sharding.specs.layers.layer import LoadColumn
from sharding.specs.modules import ModuleGraph
from sharding.specs.row_load_statistics import RowLoadStatistics

LOAD_TOLERANCE = 0.05
"""Share by which mean loads may differ without a warning: the loads of other samples of the same data do."""

OccupiedByHops = Literal["asynchronous", "rendezvous"]
"""What hops occupy: no device (`asynchronous`, as device_put within a process), or the devices of both their ends
(`rendezvous`, as programs between processes)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedConfiguration:
    """The configuration that a planning problem was read from: the values of the flags of `mmjax.plan`.

    Attributes:
        gin_file: Configuration files.
        gin: Parameters and macros set over them.
        data: Name or file of the described data, or name of the training run's data set.
        trainable: Parts that train.
        profile: Profile by which layers are costed; the analytic costs of the cluster without one.
        grouping: Policy that groups samples into rows (`DataConfig.grouping`); empty where rows were not grouped.
    """

    gin_file: tuple[str, ...] = ()
    gin: tuple[str, ...] = ()
    data: str = ""
    trainable: tuple[str, ...] = ()
    profile: str = ""
    grouping: str = ""

    __repr__ = short_repr

    @property
    def title(self) -> str:
        """The configuration in a few words."""
        files = " with ".join(pathlib.PurePath(name).stem for name in self.gin_file)
        return files + (f" on {self.data}" if self.data else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleSize:
    """A module's name, layers that stages divide, and number of parameters."""

    module: str
    layers: int
    parameters: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanLoad:
    """The load of the mean row on a module (`LoadColumn`)."""

    module: str
    tokens: float = 0.0
    squared_lengths: float = 0.0
    items: float = 0.0
    local_pairs: float = 0.0

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanPurpose:
    """The model, rows, data and cluster that a plan was made for. A plan made by hand may leave out any of them.

    Attributes:
        configuration: The configuration that it was read from.
        model: Its modules.
        mean_row: The mean load of its rows.
        rows: Rows of the global batch.
        cluster: Name of the cluster.
        described_cluster: The cluster, where it is described in a gin file and not in configs/clusters.py.
        devices: Devices of the cluster, of which the plan takes some or all.
        hops: What hops were taken to occupy; None for the default of the cluster (`default_hops`).
        without: Effects that were left out of analytic costs.
    """

    configuration: NamedConfiguration = NamedConfiguration()
    model: tuple[ModuleSize, ...] = ()
    mean_row: tuple[MeanLoad, ...] = ()
    rows: int | None = None
    cluster: str = ""
    described_cluster: ClusterConfig | None = None
    devices: int | None = None
    hops: OccupiedByHops | None = None
    without: tuple[EffectName, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name, most in (("rows", MAX_ROWS), ("devices", MAX_DEVICES)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise PlanError(f"the plan's made_for: {name} is {value}; it must be from 1 to {most}")
        if self.described_cluster and self.described_cluster.name != self.cluster:
            raise PlanError(
                f"the plan's made_for: cluster is {self.cluster!r}, and described_cluster has the name "
                f"{self.described_cluster.name!r}; give both the same"
            )
        names = {"cluster": self.cluster} | dataclasses.asdict(self.configuration)
        if self.described_cluster:
            names["described_cluster"] = (*self.described_cluster.device_kinds, *self.described_cluster.excluded_kinds)
        names |= {"module": tuple(entry.module for entry in (*self.model, *self.mean_row))}
        for key, value in names.items():
            for text in value if isinstance(value, tuple) else (value,):
                if not text.isprintable():
                    raise PlanError(f"the plan's made_for: {key} has {reprlib.repr(text)}; use printable characters")

    @property
    def known_cluster(self) -> ClusterConfig | None:
        """The figures of the cluster; None for a cluster that is not known."""
        return self.described_cluster or CLUSTERS.get(self.cluster)

    @property
    def occupied_by_hops(self) -> OccupiedByHops | None:
        """What hops were taken to occupy, by default too; None if the default is not known."""
        cluster = self.known_cluster
        return self.hops or (default_hops(cluster, self.devices) if cluster and self.devices else None)

    def document(self) -> dict[str, Any]:
        """The purpose as JSON values, without fields that are left out."""
        return _without_defaults(self)


def hops_of_processes(processes: int) -> OccupiedByHops:
    """What hops occupy in a run of so many processes, wherever its devices are."""
    return "rendezvous" if processes > 1 else "asynchronous"


def default_hops(cluster: ClusterConfig, devices: int) -> OccupiedByHops:
    """What hops are taken to occupy on so many devices of a cluster: a run on several nodes has several processes."""
    return "rendezvous" if devices > cluster.devices_per_node else "asynchronous"


def cluster_of_run(made_for: PlanPurpose | None, device_kind: str) -> ClusterConfig | None:
    """The cluster of a run whose devices are of a kind (`jax.Device.device_kind`); None if it is not known.

    It is the described cluster that the run's plan was made for, unless that names kinds of devices without this one,
    and the kind is of a cluster in configs/clusters.py.
    """
    known, described = cluster_of_device_kind(device_kind), made_for.described_cluster if made_for else None
    if described and (known is None or not described.device_kinds or described.has_device_kind(device_kind)):
        return described
    return known


def module_sizes(graph: ModuleGraph) -> tuple[ModuleSize, ...]:
    """The sizes of a model's modules."""
    return tuple(
        ModuleSize(module=module.name, layers=module.layer_count, parameters=module.parameter_count)
        for module in graph.modules
    )


def mean_loads(statistics: RowLoadStatistics) -> tuple[MeanLoad, ...]:
    """The mean row of statistics, to four digits."""
    return tuple(
        MeanLoad(
            module=module,
            **{column.name.lower(): float(f"{statistics.mean_load(module)[column]:.4g}") for column in LoadColumn},
        )
        for module in statistics.loads
    )


def differences(made_for: PlanPurpose, here: PlanPurpose) -> list[str]:
    """Where a step differs from the one that a plan was made for, such as `rows 1,920 (here 960)`.

    What one of them leaves out is not compared, neither are names of files, of other data no loads, and of a cluster of
    another name no figures.
    """
    words, words_here = _words(made_for), _words(here)
    if made_for.cluster == here.cluster:
        words, words_here = words | _cluster_figures(made_for), words_here | _cluster_figures(here)
    other = {description: (there, words_here.get(description, there)) for description, there in words.items()}
    if words.get("data") == words_here.get("data"):
        loads, loads_here = _loads(made_for), _loads(here)
        other |= {
            description: (f"{there:,.4g}", f"{loads_here[description]:,.4g}")
            for description, there in loads.items()
            if not math.isclose(there, loads_here.get(description, there), rel_tol=LOAD_TOLERANCE)
        }
    return [f"{description} {there} (here {this})" for description, (there, this) in other.items() if there != this]


def _words(purpose: PlanPurpose) -> dict[str, str]:
    """Values that are compared exactly, by their description in words."""
    sizes = {
        f"{name} of {module.module}": f"{getattr(module, name):,}"
        for module in purpose.model
        for name in ("layers", "parameters")
    }
    named = {
        "trainable parts": ", ".join(purpose.configuration.trainable),
        "data": purpose.configuration.data,
        "grouping": purpose.configuration.grouping,
        "rows": f"{purpose.rows:,}" if purpose.rows else "",
        "cluster": purpose.cluster,
        "hops": purpose.occupied_by_hops or "",
        "effects left out": (", ".join(purpose.without) or "none") if purpose.cluster else "",
    }
    return sizes | {description: word for description, word in named.items() if word}


def _cluster_figures(purpose: PlanPurpose) -> dict[str, str]:
    """Figures of the cluster, by their description in words; none for a cluster that is not known."""
    cluster = purpose.known_cluster
    return _figures(dataclasses.asdict(cluster), f"cluster {cluster.name}") if cluster else {}


def _figures(values: Mapping[str, Any], owner: str) -> dict[str, str]:
    """Numbers of a record and of the records in it, by their description in words."""
    figures: dict[str, str] = {}
    for name, value in values.items():
        description = f"{name} of {owner}"
        figures |= _figures(value, description) if isinstance(value, Mapping) else {description: str(value)}
    return figures


def _loads(purpose: PlanPurpose) -> dict[str, float]:
    """Mean loads of a row, by their description in words."""
    return {
        f"{name.replace('_', ' ')} of {load.module} in the mean row": getattr(load, name)
        for load in purpose.mean_row
        for name in ("tokens", "squared_lengths", "items")
    }


def _without_defaults(record: Any) -> dict[str, Any]:
    """The fields of a record that are not at their default, records within it likewise, as JSON values."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if value == field.default:
            continue
        if dataclasses.is_dataclass(value):
            value = _without_defaults(value)
        elif isinstance(value, tuple):
            value = [_without_defaults(item) if dataclasses.is_dataclass(item) else item for item in value]
        fields[field.name] = value
    return fields
