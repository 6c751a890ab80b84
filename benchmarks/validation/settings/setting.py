"""A published run as a setting of the simulator, and the seconds of its step."""

import dataclasses
from collections.abc import Callable

import numpy as np

from configs.architectures import ModelConfig
from configs.cost_effects import CostEffects
from configs.modules.backbone import BackboneConfig
from configs.modules.encoders import EncoderConfig
from configs.modules.generator import GeneratorConfig
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
from sharding.specs.encoders import encoder_spec
from sharding.specs.generator import generator_spec
from sharding.specs.layers.layer import LayerSpec, RecomputePolicy
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph, module_graph

Load = tuple[float, float, float, float]
"""The load of one sample: tokens, squared lengths, items, pairs of local attention."""


def with_kernels(graph: ModuleGraph, adapt: Callable[[LayerSpec], LayerSpec]) -> ModuleGraph:
    """Modules with the kernels of a framework, which `adapt` gives a layer from ours."""

    def adapted(spec: ModuleSpec) -> ModuleSpec:
        leading, trailing = (tuple(map(adapt, layers)) for layers in (spec.leading_layers, spec.trailing_layers))
        later = tuple((adapt(layer), count) for layer, count in spec.later_runs)
        return dataclasses.replace(
            spec, leading_layers=leading, layer=adapt(spec.layer), later_runs=later, trailing_layers=trailing
        )

    return ModuleGraph(tuple(map(adapted, graph.modules)))


def language_graph(model: BackboneConfig) -> ModuleGraph:
    """A language model alone."""
    return module_graph(ModelConfig((), model, (), "bfloat16"))


def encoder_graph(encoder: EncoderConfig) -> ModuleGraph:
    """An encoder alone, with a projector to its own width."""
    return _alone(encoder_spec(encoder, BackboneConfig(width=encoder.width)))


def generator_graph(generator: GeneratorConfig) -> ModuleGraph:
    """A generator alone, whose conditions are given."""
    return _alone(generator_spec(generator, BackboneConfig(width=generator.condition_width)))


def _alone(spec: ModuleSpec) -> ModuleGraph:
    return ModuleGraph((dataclasses.replace(spec, inputs=(), is_backbone=True),))


def sequence_load(length: int) -> Load:
    """The load of a sequence of one segment."""
    return float(length), float(length) ** 2, 1.0, 0.0


def share_of(load: Load, ranks: int) -> Load:
    """The load of one of the ranks that divide a sample's tokens, and its pairs of attention, evenly."""
    tokens, squares, items, pairs = (amount / ranks for amount in load)
    return tokens, squares, items, pairs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """How a run was trained: modules in one unit.

    Attributes:
        graph: The modules, with the kernels of the framework.
        costs: The devices, and what the framework's kernels reach.
        loads: Of each module, the load of one sample.
        microbatch: Samples of a microbatch on each replica.
        microbatches: Microbatches of a step.
        tp: Tensor ranks.
        cp: Context-parallel ranks.
        pp: Pipeline ranks.
        chunks: Chunks of each pipeline rank.
        dp: Replicas; the optimizer's state is divided among them.
        ep: Replicas that divide the experts.
        fsdp: Replicas that divide the weights too.
        recompute: Recomputation policy.
        collectives: What tensor ranks do around split matmuls: `sequence_parallel` is Megatron-LM's sequence
            parallelism, `all_reduce` is none.
        trains: The parts that train.
    """

    graph: ModuleGraph
    costs: AnalyticCostModel
    loads: tuple[Load, ...]
    microbatch: int = 1
    microbatches: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    chunks: int = 1
    dp: int = 1
    ep: int = 1
    fsdp: int = 1
    recompute: RecomputePolicy = "none"
    collectives: CollectivesName = "sequence_parallel"
    trains: tuple[str, ...] = ("all",)

    def with_effects(self, effects: CostEffects) -> "Setting":
        """The same setting with other effects on its costs."""
        cluster = self.costs.cluster
        generation = dataclasses.replace(cluster.generation, effects=effects)
        cluster = dataclasses.replace(cluster, generation=generation)
        return dataclasses.replace(self, costs=dataclasses.replace(self.costs, cluster=cluster))

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return self.microbatch * self.microbatches * self.dp

    @property
    def devices(self) -> int:
        """Devices of the run."""
        return self.tp * self.cp * self.pp * self.dp


def simulated_step(setting: Setting) -> float:
    """Seconds of a step."""
    graph, stages = with_kernels(setting.graph, _without_recomputed_logits), setting.pp * setting.chunks
    unit = UnitPlan(
        graph.backbone.name,
        graph.names,
        tuple(range(setting.devices)),
        layers=_stage_layers(sum(module.layer_count for module in graph.modules), stages),
        recompute=(setting.recompute,) * stages,
        parallelism=Parallelism(
            dp=setting.dp,
            fsdp=setting.fsdp,
            ep=setting.ep,
            cp=setting.cp,
            tp=setting.tp,
            chunks=setting.chunks,
            collectives=setting.collectives,
        ),
    )
    plan = Plan((unit,), setting.microbatches, "interleaved" if setting.chunks > 1 else "1f1b")
    trains = trained_parts(graph, setting.trains)
    rows = {
        module.name: np.tile(load, (setting.samples, 1))
        for module, load in zip(graph.modules, setting.loads, strict=True)
    }
    resolved = ResolvedPlan(plan, graph, trains)
    costs = plan_costs(resolved, BatchCosts(graph, setting.costs, rows))
    return simulate(resolved, build_schedule(resolved, resolved.trained_stages), costs).step


def _without_recomputed_logits(layer: LayerSpec) -> LayerSpec:
    """A layer of frameworks that save the logits, or take their gradient in the forward."""
    kernels = (dataclasses.replace(kernel, always_recomputed=False) for kernel in layer.kernels)
    return dataclasses.replace(layer, kernels=tuple(kernels))


def _stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of every stage: as equal as possible, fewer on the last ones, which compute the loss."""
    return tuple(layers // stages + (number < layers % stages) for number in range(stages))
