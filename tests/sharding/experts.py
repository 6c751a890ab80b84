"""A graph whose backbone has experts where it had an MLP: described by hand, for planners and costs."""

import dataclasses

from sharding.layer_spec import Amount, expert_gather, expert_matmul, expert_scatter
from sharding.specs import ModuleGraph, ModuleSpec

TOP_K = 2


def with_experts(graph: ModuleGraph, experts: int, ffn: int = 256) -> ModuleGraph:
    """`experts` experts of an ungated MLP in every layer of the backbone, of which a token takes TOP_K."""
    modules = [_with_experts(module, experts, ffn) if module.backbone else module for module in graph.modules]
    return ModuleGraph(tuple(modules))


def _with_experts(module: ModuleSpec, experts: int, ffn: int) -> ModuleSpec:
    layer = module.layer
    width = int(layer.output.tokens)
    kernels = (
        *(kernel for kernel in layer.kernels if kernel.name not in ("up", "activation", "down")),
        expert_gather(width),
        expert_matmul("experts_up", width, ffn, TOP_K, experts),
        expert_matmul("experts_down", ffn, width, TOP_K, experts),
        expert_scatter(width),
    )
    moved = sum(kernel.weights for kernel in layer.kernels if kernel.name in ("up", "down"))
    layer = dataclasses.replace(
        layer,
        kernels=kernels,
        parameters=layer.parameters - moved,
        expert_parameters=experts * 2 * width * ffn,
        output=Amount(width),
    )
    return dataclasses.replace(module, layer=layer, expert_count=experts)
