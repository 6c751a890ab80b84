"""A published run as a setting of the simulator, and the seconds of its step."""

import dataclasses
from collections.abc import Callable

import numpy as np

from configs.architectures import ModelConfig
from configs.modules.backbone import BackboneConfig
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.stages.plan_costs import plan_costs
from sharding.plans.parallelism import CollectivesName, Parallelism
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.named.build import build_schedule
from sharding.simulation.simulator import simulate
from sharding.specs.layers.layer import LayerSpec, RecomputePolicy
from sharding.specs.modules import ModuleGraph, module_graph


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """How a run was trained.

    Attributes:
        model: The language model.
        costs: The devices, and what the framework's kernels reach.
        adapt: Gives a layer the kernels of the framework, from ours.
        length: Positions of a sequence.
        microbatch: Sequences of a microbatch on each replica.
        microbatches: Microbatches of a step.
        tp: Tensor ranks.
        pp: Pipeline ranks.
        chunks: Chunks of each pipeline rank.
        dp: Replicas; the optimizer's state is divided among them.
        fsdp: Replicas that divide the weights too.
        recompute: Recomputation policy.
        collectives: What tensor ranks do around split matmuls: `sequence_parallel` is Megatron-LM's sequence
            parallelism, `all_reduce` is none.
    """

    model: BackboneConfig
    costs: AnalyticCostModel
    adapt: Callable[[LayerSpec], LayerSpec]
    length: int = 2048
    microbatch: int = 1
    microbatches: int = 1
    tp: int = 1
    pp: int = 1
    chunks: int = 1
    dp: int = 1
    fsdp: int = 1
    recompute: RecomputePolicy = "none"
    collectives: CollectivesName = "sequence_parallel"

    @property
    def sequences(self) -> int:
        """Sequences of a step."""
        return self.microbatch * self.microbatches * self.dp

    @property
    def graph(self) -> ModuleGraph:
        """The model with the framework's kernels."""
        spec = module_graph(ModelConfig((), self.model, (), "bfloat16")).backbone
        leading, trailing = (tuple(map(self.adapt, layers)) for layers in (spec.leading_layers, spec.trailing_layers))
        spec = dataclasses.replace(spec, leading_layers=leading, layer=self.adapt(spec.layer), trailing_layers=trailing)
        return ModuleGraph((spec,))


def simulated_step(setting: Setting) -> float:
    """Seconds of a step."""
    graph, stages = setting.graph, setting.pp * setting.chunks
    unit = UnitPlan(
        setting.model.name,
        (setting.model.name,),
        tuple(range(setting.tp * setting.pp * setting.dp)),
        layers=(setting.model.depth // stages,) * stages,
        recompute=(setting.recompute,) * stages,
        parallelism=Parallelism(
            dp=setting.dp, fsdp=setting.fsdp, tp=setting.tp, chunks=setting.chunks, collectives=setting.collectives
        ),
    )
    plan = Plan((unit,), setting.microbatches, "interleaved" if setting.chunks > 1 else "1f1b")
    trains = trained_parts(graph, ("all",))
    length = float(setting.length)
    rows = {setting.model.name: np.tile([length, length**2, 1.0, 0.0], (setting.sequences, 1))}
    resolved = ResolvedPlan(plan, graph, trains)
    costs = plan_costs(resolved, BatchCosts(graph, setting.costs, rows))
    return simulate(resolved, build_schedule(resolved, resolved.trained_stages), costs).step
