"""How the rows of a step are to be ordered, said as data: so producers elsewhere can do it for a trainer's plan."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from data.errors import DataError
from data.packing.row_order import RowOrder
from data.samples.sample_format import SampleFormat
from sharding.balancing.reordering.row_reorderer import REORDERING_POLICIES, RowReorderer
from sharding.costs.analytic import AnalyticCostModel
from sharding.plans.plan import Plan
from sharding.plans.trained_parts import trained_parts
from sharding.specs.modules import module_graph


@dataclasses.dataclass(frozen=True)
class RowOrderRequest:
    """An order of rows.

    Attributes:
        plan: That it is for.
        cluster: Name of the devices whose roofline tells what rows cost (`configs.clusters`).
        trainable: Parts that train (`TrainConfig.trainable`).
        policy: Of `sharding.balancing.reordering.row_reorderer`.
    """

    plan: Plan
    cluster: str
    trainable: tuple[str, ...]
    policy: str

    def arranger(self, model: ModelConfig) -> RowReorderer:
        """Orders the loads of rows."""
        graph = module_graph(model)
        costs = AnalyticCostModel(CLUSTERS[self.cluster], element_bytes=model.element_bytes)
        return RowReorderer(self.plan, graph, costs, trained_parts(graph, self.trainable), self.policy)

    def make_row_order(self, model: ModelConfig, form: SampleFormat) -> RowOrder:
        """Orders rows by the sizes of their samples."""
        return RowOrder(self.arranger(model), form, model.backbone.name)

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "plan": json.loads(self.plan.to_json()),
            "cluster": self.cluster,
            "trainable": list(self.trainable),
            "policy": self.policy,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "RowOrderRequest":
        """What `to_json` gave; raises DataError, or PlanError, if it is something else."""
        try:
            plan = Plan.from_json(json.dumps(fields["plan"]))
            cluster, trainable, policy = fields["cluster"], tuple(fields["trainable"]), fields["policy"]
        except (KeyError, TypeError) as error:
            raise DataError(f"this is no order of rows: {type(error).__name__}: {error}") from error
        if (
            cluster not in CLUSTERS
            or policy not in REORDERING_POLICIES
            or not all(isinstance(name, str) for name in trainable)
        ):
            raise DataError(f"this is no order of rows: for {cluster!r} by policy {policy!r}, training {trainable}")
        return cls(plan, cluster, trainable, policy)
