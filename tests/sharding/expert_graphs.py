"""Module graphs whose backbone has experts instead of an MLP, for planners and costs."""

import dataclasses

from sharding.expert_transfer import Routing
from sharding.specs.layers.layer import PerLoad, expert_combine, expert_dispatch, expert_matmul
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph

TOP_K = 2


def with_experts(graph: ModuleGraph, experts: int, ffn: int = 256) -> ModuleGraph:
    """`experts` experts of an ungated MLP in every layer of the backbone, of which a token takes TOP_K."""
    modules = [_with_experts(module, experts, ffn) if module.is_backbone else module for module in graph.modules]
    return ModuleGraph(tuple(modules))


def _with_experts(module: ModuleSpec, experts: int, ffn: int) -> ModuleSpec:
    layer = module.layer
    width = int(layer.output_elements.tokens)
    kernels = (
        *(kernel for kernel in layer.kernels if kernel.name not in ("up", "activation", "down")),
        expert_dispatch(width, TOP_K),
        expert_matmul("experts_up", width, ffn, TOP_K, experts),
        expert_matmul("experts_down", ffn, width, TOP_K, experts),
        expert_combine(width),
    )
    moved = sum(kernel.weights for kernel in layer.kernels if kernel.name in ("up", "down"))
    layer = dataclasses.replace(
        layer,
        kernels=kernels,
        parameters=layer.parameters - moved,
        expert_parameters=experts * 2 * width * ffn,
        routing=Routing(experts, TOP_K),
        output_elements=PerLoad(width),
    )
    return dataclasses.replace(module, layer=layer, expert_count=experts)
