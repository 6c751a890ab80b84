"""Row order: the order of a step's rows that makes the simulated step of a plan short.

Rows are ordered where batches are made, from the sizes of their samples and before these are decoded, as in DistTrain
(arXiv 2408.04275). Rows move as wholes, so no sum over a batch changes.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS, ClusterConfig
from data.errors import DataError
from data.packing.global_batch import GlobalBatch
from data.packing.phases.limited_phases import LimitedPhase, limited_phases
from data.packing.planned_row_loads import planned_row_loads
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat
from sharding.balancing.reordering.row_reorderer import REORDERING_POLICIES, RowReorderer
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.cost_model import CostModel
from sharding.costs.profiled import Profile, ProfiledCostModel, TimedRanks
from sharding.costs.stages.stage_parameters import module_parallelism
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.modules import ModuleGraph, module_graph

MAX_PROFILE_BYTES = 1 << 19
"""Most bytes of the profile of a request, as JSON; a measurement of a layer takes some hundred."""


@dataclasses.dataclass(frozen=True, eq=False)
class RowOrder:
    """Orders the rows of a step from the sizes of their samples (`data.packing.rows.row_planner.OrderRows`).

    Attributes:
        reorderer: Orders row loads for one plan.
        sample_format: Names the encoders and the generator.
        graph: The modules of the model with their costs.
    """

    reorderer: RowReorderer
    sample_format: SampleFormat
    graph: ModuleGraph

    def __call__(self, rows: Sequence[Sequence[SampleSizes]]) -> Int[np.ndarray, " n"]:
        """The order of rows whose samples have these sizes; the items of every microbatch fit as in the given order."""
        return self.reorderer.row_order(
            planned_row_loads(rows, self.sample_format, self.graph), functools.partial(self._fits, rows)
        )

    def _fits(self, rows: Sequence[Sequence[SampleSizes]], order: Int[np.ndarray, " n"]) -> bool:
        """Whether the items of every microbatch fit into the rows of the plan's phases."""
        microbatches = self.reorderer.resolved.plan.microbatches
        microbatch_of_row = np.empty(len(rows), int)
        microbatch_of_row[order] = np.arange(len(rows)) // (len(rows) // microbatches)
        return all(phase.fits(rows, microbatch_of_row, microbatches) for phase in self._limited_phases)

    @functools.cached_property
    def _limited_phases(self) -> tuple[LimitedPhase, ...]:
        return limited_phases(self.reorderer.resolved.plan, self.sample_format)


@dataclasses.dataclass(frozen=True)
class RowOrderRequest:
    """A row order as plain data, so that producers on other hosts can order rows for a trainer's plan.

    Attributes:
        plan: The plan for which rows are ordered.
        cluster: Name of the devices by whose analytic costs rows are costed without a profile: in `configs.clusters`,
            or of the described cluster that the plan was made for.
        trainable: Parts that train (`TrainConfig.trainable`).
        policy: Reordering policy (`sharding.balancing.reordering.row_reorderer`).
        profile: Measured times by which rows are costed; None for the analytic costs.
        rendezvous: Whether hops occupy the devices of both their ends, as between processes.
    """

    plan: Plan
    cluster: str
    trainable: tuple[str, ...]
    policy: str
    profile: Profile | None = dataclasses.field(default=None, hash=False)
    rendezvous: bool = False

    def make_row_order(self, model: ModelConfig, sample_format: SampleFormat) -> RowOrder:
        """The row order for a model."""
        graph = module_graph(model)
        resolved = ResolvedPlan(self.plan, graph, trained_parts(graph, self.trainable))
        reorderer = RowReorderer(resolved, self._costs(model), self.policy, rendezvous=self.rendezvous)
        return RowOrder(reorderer, sample_format, graph)

    def _costs(self, model: ModelConfig) -> CostModel:
        if self.profile is not None:
            return ProfiledCostModel(self.profile)
        cluster = _find_cluster(self.plan, self.cluster)
        assert cluster is not None  # as `from_json` and `row_order_request` check
        return AnalyticCostModel(cluster, element_bytes=model.element_bytes)

    def to_json(self) -> dict[str, Any]:
        """The request as JSON values."""
        return {
            "plan": json.loads(self.plan.to_json()),
            "cluster": self.cluster,
            "trainable": list(self.trainable),
            "policy": self.policy,
            "profile": self.profile and json.loads(self.profile.to_json()),
            "rendezvous": self.rendezvous,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "RowOrderRequest":
        """The request that `to_json` wrote; raises DataError, PlanError or ProfileError for other values."""
        try:
            plan = Plan.from_json(json.dumps(fields["plan"]))
            cluster, trainable, policy = fields["cluster"], tuple(fields["trainable"]), fields["policy"]
            profile = None if fields["profile"] is None else _read_profile(json.dumps(fields["profile"]))
            rendezvous = fields["rendezvous"]
        except (KeyError, TypeError) as error:
            raise DataError(f"not a row-order request: {type(error).__name__}: {error}") from error
        names = (cluster, policy, *trainable)
        if (
            not all(isinstance(name, str) for name in names)
            or _find_cluster(plan, cluster) is None
            or policy not in REORDERING_POLICIES
            or type(rendezvous) is not bool
        ):
            raise DataError(
                f"not a row-order request: cluster {cluster!r}, policy {policy!r}, trainable parts {trainable}, "
                f"rendezvous {rendezvous!r}"
            )
        return cls(plan, cluster, trainable, policy, profile, rendezvous)


def _find_cluster(plan: Plan, name: str) -> ClusterConfig | None:
    """The cluster of a name: the described one that the plan was made for, or one of `configs.clusters`, or None."""
    described = plan.made_for and plan.made_for.described_cluster
    return described if described and described.name == name else CLUSTERS.get(name)


def _read_profile(text: str) -> Profile:
    if len(text) > MAX_PROFILE_BYTES:
        raise DataError(f"not a row-order request: its profile has {len(text)} bytes, more than {MAX_PROFILE_BYTES}")
    return Profile.from_json(text)


def profile_of_plan(profile: Profile, plan: Plan, model: ModelConfig) -> Profile:
    """The measurements of a profile that the costs of a plan need: the model's layers, on the ranks of its units."""
    graph = module_graph(model)
    needed = {
        (f"{layer.part}/{layer.name}", TimedRanks.of(module_parallelism(unit, module)))
        for unit in plan.units
        for module in unit.modules
        for layer, _ in graph[module].all_layers
    }
    layers = tuple(entry for entry in profile.layers if (entry.layer, entry.ranks) in needed)
    return dataclasses.replace(profile, layers=layers)


def check_profile_size(profile: Profile) -> None:
    """Raises DataError if a profile is too large for a request to producers."""
    size = len(json.dumps(json.loads(profile.to_json())))
    if size > MAX_PROFILE_BYTES:
        raise DataError(
            f"the profile's {len(profile.layers)} entries for this plan have {size} bytes, and a request for an order "
            f"of rows to TrainConfig.producers has room for {MAX_PROFILE_BYTES}: measure fewer sizes, choose "
            "TrainConfig.reordering = 'none', or train without producers"
        )


def reorder_rows(batch: GlobalBatch, order: Int[np.ndarray, " n"]) -> GlobalBatch:
    """The batch with its rows in another order."""
    arrays = {
        module: {field: array[order] for field, array in fields.items()} for module, fields in batch.arrays.items()
    }
    return dataclasses.replace(batch, arrays=arrays, sample_ids=batch.sample_ids[order])
