"""The stages that are compared: of Llama3-70B, InternViT-6B and ViT-22B, as plans would cut them for H100s."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from data.data_config import RowCapacity
from data.packing.batch_spec import BatchSpec, batch_spec_of_rows
from mmjax import cli
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.stages.plan_costs import plan_costs
from sharding.costs.step_costs import StageCosts
from sharding.plans.parallelism import CollectivesName, Parallelism
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy, make_loads
from sharding.specs.modules import module_graph

BACKBONE_TOKENS = 8192
_DEVICES = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryCase:
    """A module cut into equal stages, on one row a replica.

    Attributes:
        name: Name of the module's architecture.
        gin_file: The model that has it.
        module: The module.
        stages: Number of stages, all of which are on the same devices.
        tp: Tensor ranks.
        collectives: Their collectives.
        fsdp: Replicas, which divide the weights.
        patches: Patches of the row, of an encoder.
        image: Patches of an image.
    """

    name: str
    gin_file: str
    module: str
    stages: int
    tp: int = 1
    collectives: CollectivesName = "all_reduce"
    fsdp: int = 1
    patches: int = 0
    image: int = 1

    def model(self) -> ModelConfig:
        """The model; the language model alone where that is the module."""
        cli.parse_gin((self.gin_file,))
        config = cli.configured(ModelConfig)
        return config if self.patches else dataclasses.replace(config, encoders=())

    def plan(self, config: ModelConfig, recompute: RecomputePolicy) -> Plan:
        """The plan: the module's stages, and behind an encoder the whole backbone."""
        depth = module_graph(config)[self.module].layer_count
        unit = UnitPlan(
            self.module,
            (self.module,),
            tuple(range(self.fsdp * self.tp)),
            layers=(depth // self.stages,) * self.stages,
            recompute=(recompute,) * self.stages,
            parallelism=Parallelism(
                dp=self.fsdp, fsdp=self.fsdp, tp=self.tp, chunks=self.stages, collectives=self.collectives
            ),
        )
        if not self.patches:
            return Plan((unit,), schedule="interleaved")
        name = config.backbone.name
        layers = (config.backbone.depth,)
        rest = UnitPlan(
            name,
            (name,),
            tuple(range(_DEVICES)),
            layers=layers,
            recompute=("full",),
            parallelism=Parallelism(tp=_DEVICES),
        )
        return Plan((unit, rest), schedule="interleaved")

    def batch_spec(self, config: ModelConfig) -> BatchSpec:
        """Arrays of a batch of one row a replica."""
        return empty_batch_spec(config, self.fsdp, BACKBONE_TOKENS, {"patches": self.patches} if self.patches else {})

    def predicted(self, config: ModelConfig, plan: Plan) -> dict[StageId, StageCosts]:
        """Bytes that the planner counts, for full rows."""
        graph = module_graph(config)
        loads = {module.name: make_loads() for module in graph.modules}
        loads[graph.backbone.name] = make_loads(BACKBONE_TOKENS, BACKBONE_TOKENS**2, 1)
        if self.patches:
            loads[self.module] = make_loads(self.patches, self.patches * self.image, self.patches / self.image)
        rows = {name: np.array([row_loads] * self.fsdp, float) for name, row_loads in loads.items()}
        costs = plan_costs(
            ResolvedPlan(plan, graph, trained_parts(graph, ("all",))),
            BatchCosts(graph, AnalyticCostModel(CLUSTERS["h100"]), rows),
        )
        return dict(costs.stages)

    def compared_stages(self) -> tuple[StageId, ...]:
        """A stage in the middle, and the last, which has the language head or the projector."""
        return ((self.module, 1), (self.module, self.stages - 1))


def empty_batch_spec(
    config: ModelConfig, rows: int, tokens: int, lengths: Mapping[str, int], images: int = 0
) -> BatchSpec:
    """Arrays of a batch of some rows, each of some tokens, of some length of each encoder, and of generated images."""
    row = RowCapacity(tokens=tokens, lengths=lengths, images=images, samples=8)
    return batch_spec_of_rows(row, config, rows).arrays


class Comparison(NamedTuple):
    """Bytes of one stage on a device, as the planner counts them and as XLA allocates them.

    Attributes:
        case, stage, recompute: The compiled case.
        saved, compiled_saved: Bytes that a microbatch saves on the device.
        offloaded, compiled_offloaded: Bytes that it saves in host memory.
        total, compiled_total: All bytes of the device with one microbatch in flight.
    """

    case: str
    stage: int
    recompute: str
    saved: float
    compiled_saved: float
    offloaded: float
    compiled_offloaded: float
    total: float
    compiled_total: float

    @property
    def saved_error(self) -> float:
        """Relative error of the saved bytes, host memory included."""
        return (self.saved + self.offloaded) / (self.compiled_saved + self.compiled_offloaded) - 1

    @property
    def total_error(self) -> float:
        """Relative error of the total."""
        return self.total / self.compiled_total - 1


def compare(case: MemoryCase, recompute: RecomputePolicy, devices: Any, attention: str) -> Iterator[Comparison]:
    """Compiles a case's stages with a policy, and compares."""
    from benchmarks.memory.compiled_stages import abstract_stage_programs, compiled_bytes

    config = case.model()
    plan = case.plan(config, recompute)
    predicted = case.predicted(config, plan)
    programs = abstract_stage_programs(config, plan, case.batch_spec(config), devices, attention)
    for stage in case.compared_stages():
        compiled, costs = compiled_bytes(programs[stage], attention, 1), predicted[stage]
        saved = float(costs.saved_bytes.max())
        yield Comparison(
            case=case.name,
            stage=stage[1],
            recompute=recompute,
            saved=saved,
            compiled_saved=compiled.saved,
            offloaded=float(costs.offloaded_bytes.max()),
            compiled_offloaded=compiled.offloaded,
            total=costs.static_bytes + saved,
            compiled_total=compiled.total,
        )


CASES = (
    MemoryCase(
        name="Llama3-70B",
        gin_file="models/internvit_6b_llama3_70b.gin",
        module="backbone",
        tp=8,
        collectives="sequence_parallel",
        stages=4,
    ),
    MemoryCase(
        name="Llama3-70B, fully sharded",
        gin_file="models/internvit_6b_llama3_70b.gin",
        module="backbone",
        fsdp=8,
        stages=8,
    ),
    MemoryCase(
        name="InternViT-6B",
        gin_file="models/internvit_6b_llama3_70b.gin",
        module="vision",
        stages=5,
        patches=4100,
        image=1025,
    ),
    MemoryCase(
        name="ViT-22B",
        gin_file="models/vit_22b_llama_70b.gin",
        module="vision",
        tp=8,
        collectives="sequence_parallel",
        stages=6,
        patches=4112,
        image=257,
    ),
)
"""Rows of 8,192 tokens, of four images of InternViT-6B and of sixteen of ViT-22B."""
