"""Row order: the order of a step's rows that makes the simulated step of a plan short.

Rows are ordered where batches are made, from the sizes of their samples and before these are decoded, as in DistTrain
(arXiv 2408.04275). Rows move as wholes, so no sum over a batch changes.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from data.errors import DataError
from data.packing.global_batch import GlobalBatch
from data.packing.planned_row_loads import planned_row_loads
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat
from sharding.balancing.reordering.row_reorderer import REORDERING_POLICIES, RowReorderer
from sharding.costs.analytic import AnalyticCostModel
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.modules import ModuleGraph, module_graph


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
        """The order of rows whose samples have these sizes."""
        return self.reorderer.row_order(planned_row_loads(rows, self.sample_format, self.graph))


@dataclasses.dataclass(frozen=True)
class RowOrderRequest:
    """A row order as plain data, so that producers on other hosts can order rows for a trainer's plan.

    Attributes:
        plan: The plan for which rows are ordered.
        cluster: Name in `configs.clusters` of the devices by whose analytic costs rows are costed.
        trainable: Parts that train (`TrainConfig.trainable`).
        policy: Reordering policy (`sharding.balancing.reordering.row_reorderer`).
    """

    plan: Plan
    cluster: str
    trainable: tuple[str, ...]
    policy: str

    def make_row_order(self, model: ModelConfig, sample_format: SampleFormat) -> RowOrder:
        """The row order for a model."""
        graph = module_graph(model)
        costs = AnalyticCostModel(CLUSTERS[self.cluster], element_bytes=model.element_bytes)
        reorderer = RowReorderer(
            ResolvedPlan(self.plan, graph, trained_parts(graph, self.trainable)), costs, self.policy
        )
        return RowOrder(reorderer, sample_format, graph)

    def to_json(self) -> dict[str, Any]:
        """The request as JSON values."""
        return {
            "plan": json.loads(self.plan.to_json()),
            "cluster": self.cluster,
            "trainable": list(self.trainable),
            "policy": self.policy,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "RowOrderRequest":
        """The request that `to_json` wrote; raises DataError or PlanError for other values."""
        try:
            plan = Plan.from_json(json.dumps(fields["plan"]))
            cluster, trainable, policy = fields["cluster"], tuple(fields["trainable"]), fields["policy"]
        except (KeyError, TypeError) as error:
            raise DataError(f"not a row-order request: {type(error).__name__}: {error}") from error
        if (
            cluster not in CLUSTERS
            or policy not in REORDERING_POLICIES
            or not all(isinstance(name, str) for name in trainable)
        ):
            raise DataError(
                f"not a row-order request: cluster {cluster!r}, policy {policy!r}, trainable parts {trainable}"
            )
        return cls(plan, cluster, trainable, policy)


def reorder_rows(batch: GlobalBatch, order: Int[np.ndarray, " n"]) -> GlobalBatch:
    """The batch with its rows in another order."""
    arrays = {
        module: {field: array[order] for field, array in fields.items()} for module, fields in batch.arrays.items()
    }
    return dataclasses.replace(batch, arrays=arrays, sample_ids=batch.sample_ids[order])
