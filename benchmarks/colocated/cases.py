"""A setting as a planning problem whose rows are all alike, so that every system has the same work and costs."""

import dataclasses
import functools

import numpy as np

from benchmarks.colocated.settings import MICROBATCH, SAMPLE_TOKENS, OptimusSetting
from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from mmjax import cli
from sharding.costs.analytic import AnalyticCostModel
from sharding.planners.problem import PlanningProblem
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.layers.layer import make_loads
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics

CHUNKS = (1, 2, 3, 4, 6, 8, 12)
"""Virtual stages of a rank that searched plans may have."""


@dataclasses.dataclass(frozen=True, eq=False)
class OptimusCase:
    """A setting with its model.

    Attributes:
        setting: The setting.
        model: Its model.
    """

    setting: OptimusSetting
    model: ModelConfig

    @functools.cached_property
    def problem(self) -> PlanningProblem:
        """The problem whose rows are a replica's microbatches, of MICROBATCH samples each."""
        return self.problem_with(MICROBATCH)

    @functools.cached_property
    def backbone_alone(self) -> "OptimusCase":
        """The problem without encoders."""
        return OptimusCase(self.setting, dataclasses.replace(self.model, encoders=()))

    def problem_with(self, samples: int) -> PlanningProblem:
        """The problem whose rows have so many samples each."""
        setting, graph = self.setting, module_graph(self.model)
        cluster = CLUSTERS[setting.cluster]
        lengths = {encoder.name: setting.patches for encoder in self.model.encoders}
        lengths[self.model.backbone.name] = SAMPLE_TOKENS
        loads = {name: make_loads(length, length**2, 1) * samples for name, length in lengths.items()}
        return PlanningProblem(
            graph=graph,
            costs=AnalyticCostModel(cluster, element_bytes=self.model.element_bytes),
            cluster=cluster,
            devices=setting.devices,
            rows=setting.batch // samples,
            data=RowLoadStatistics({name: np.array([load]) for name, load in loads.items()}),
            trained_parts=trained_parts(graph, ("all",)),
            chunk_choices=CHUNKS,
        )


def case_of(setting: OptimusSetting) -> OptimusCase:
    """The case of a setting, whose model is read from configs/models."""
    cli.parse_gin((f"models/{setting.model}.gin",))
    return OptimusCase(setting, cli.configured(ModelConfig))
