"""Row order: the order of a step's rows that makes the simulated step of a plan short.

Rows are ordered where batches are made, from the sizes of their samples and before these are decoded, as in DistTrain
(arXiv 2408.04275). Rows move as wholes, so no sum over a batch changes.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from data.errors import DataError
from data.packing.global_batch import GlobalBatch
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat
from sharding.balancing.reordering.row_reorderer import REORDERING_POLICIES, RowReorderer
from sharding.costs.analytic import AnalyticCostModel
from sharding.plans.plan import Plan
from sharding.plans.trained_parts import trained_parts
from sharding.specs.layer import make_loads
from sharding.specs.local_attention import LocalAttention
from sharding.specs.modules import module_graph


@dataclasses.dataclass(frozen=True, eq=False)
class RowOrder:
    """Orders the rows of a step from the sizes of their samples (`data.packing.step_planner.OrderRows`).

    Attributes:
        reorderer: Orders row loads for one plan.
        sample_format: Names the encoders and the generator.
        backbone: Name of the backbone.
        local: By module with local attention, what that reads. Images count as squares.
    """

    reorderer: RowReorderer
    sample_format: SampleFormat
    backbone: str
    local: Mapping[str, LocalAttention] = dataclasses.field(default_factory=dict)

    def __call__(self, rows: Sequence[Sequence[SampleSizes]]) -> Int[np.ndarray, " n"]:
        """The order of rows whose samples have these sizes."""
        return self.reorderer.row_order(self.row_loads(rows))

    def row_loads(self, rows: Sequence[Sequence[SampleSizes]]) -> dict[str, Float[np.ndarray, "n 4"]]:
        """Loads of every row by module (`sharding.specs.layer.LoadColumn`)."""

        def row_sums(name: str) -> Float[np.ndarray, " n"]:
            return np.array([sum(getattr(sizes, name) for sizes in row) for row in rows], float)

        tokens = [np.array([sizes.tokens for sizes in row], float) for row in rows]
        pairs = self._local_pairs(self.backbone, tokens)
        loads = {self.backbone: make_loads(row_sums("tokens"), row_sums("token_squares"), local_pairs=pairs)}
        for field, encoder in self.sample_format.encoder_formats.items():
            attended = [
                np.array([encoder.attended_positions(each) for sizes in row for each in sizes.items[field]], float)
                for row in rows
            ]
            lengths = np.array([sum(sizes.lengths[field] for sizes in row) for row in rows], float)
            squares = np.array([np.square(of_row).sum() for of_row in attended])
            pairs = self._local_pairs(encoder.module, attended)
            loads[encoder.module] = make_loads(lengths / encoder.values_per_position, squares, local_pairs=pairs)
        if self.sample_format.target_images:
            loads[self.sample_format.target_images.module] = make_loads(items=row_sums("images"))
        return loads

    def _local_pairs(self, module: str, lengths: Sequence[Float[np.ndarray, " _"]]) -> Float[np.ndarray, " n"]:
        """Pairs of each row's local attention, from the lengths of its items; zeros for a module without it."""
        local = self.local.get(module)
        return np.array([float(local.pairs(of_row).sum()) if local else 0.0 for of_row in lengths])


@dataclasses.dataclass(frozen=True)
class RowOrderRequest:
    """A row order as plain data, so that producers on other hosts can order rows for a trainer's plan.

    Attributes:
        plan: The plan for which rows are ordered.
        cluster: Name in `configs.clusters` of the devices whose analytic costs give that of a row.
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
        reorderer = RowReorderer(self.plan, graph, costs, trained_parts(graph, self.trainable), self.policy)
        local = {module.name: module.local for module in graph.modules if module.local}
        return RowOrder(reorderer, sample_format, model.backbone.name, local)

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
