"""Low-rank adapters (LoRA) as layers in addition to the layers that they adapt.

`module_graph` adds the adapters to the specs of adapted modules.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from configs.architectures import BackboneConfig, GeneratorConfig, UNetConfig
from configs.modules.lora import LoraConfig
from configs.modules.transformer import TransformerConfig
from sharding.specs.generator import transformer_blocks
from sharding.specs.layers.layer import (
    ZERO,
    Kernel,
    LayerSpec,
    PerLoad,
    SavedActivations,
    matmul_of_rows,
    saved_by_policy,
)

FEED_FORWARD_PROJECTIONS = ("gate", "up", "down")
"""The projections of a feed-forward layer among `configs.modules.lora.TARGETS`."""


class AdaptedProjection(NamedTuple):
    """A matmul that may have an adapter.

    Attributes:
        name: Its name among `configs.modules.lora.TARGETS`.
        inputs: Width of its input.
        outputs: Width of its output.
        split_by_rows: Whether tensor ranks divide the input width instead of the output width.
        positions: How many positions pass through it, as a function of the load.
    """

    name: str
    inputs: int
    outputs: int
    split_by_rows: bool
    positions: PerLoad


@functools.singledispatch
def adapted_projections(config: Any) -> Iterator[AdaptedProjection]:
    """The projections of one layer of a module. A new kind of module registers its own, by its configuration's type."""
    raise TypeError(f"no projections are known for {type(config).__name__}; register them with adapted_projections")


@adapted_projections.register
def _transformer(config: TransformerConfig) -> Iterator[AdaptedProjection]:
    yield from _attention(config.width, config.width, config.kv_width, PerLoad(1), PerLoad(1), config.query_width)
    yield from _feed_forward(config.width, config.ffn, config.gated, PerLoad(1))


@adapted_projections.register
def _backbone(config: BackboneConfig) -> Iterator[AdaptedProjection]:
    if config.latent_attention is None:
        yield from _attention(config.width, config.width, config.kv_width, PerLoad(1), PerLoad(1), config.query_width)
    else:
        inputs = config.latent_attention.query_rank or config.width
        yield AdaptedProjection("query", inputs, config.query_width, False, PerLoad(1))
        value_width = config.heads * config.latent_attention.value_width
        yield AdaptedProjection("output", value_width, config.width, True, PerLoad(1))
    yield from _feed_forward(config.width, config.ffn, config.gated, PerLoad(1))


@adapted_projections.register
def _generator(config: UNetConfig) -> Iterator[AdaptedProjection]:
    for width, area in transformer_blocks(config):
        pixels = PerLoad(items=area)
        yield from _attention(width, width, width, pixels, pixels)
        if config.second_attention == "map":
            yield from _attention(width, width, width, pixels, pixels)
        else:
            yield from _attention(width, config.condition_width, width, pixels, PerLoad(items=config.conditions))
        yield from _feed_forward(width, 4 * width, True, pixels)


def _attention(
    width: int, source_width: int, kv_width: int, queries: PerLoad, keys: PerLoad, query_width: int = 0
) -> Iterator[AdaptedProjection]:
    yield AdaptedProjection("query", width, query_width or width, False, queries)
    yield AdaptedProjection("key", source_width, kv_width, False, keys)
    yield AdaptedProjection("value", source_width, kv_width, False, keys)
    yield AdaptedProjection("output", query_width or width, width, True, queries)


def _feed_forward(width: int, hidden: int, gated: bool, positions: PerLoad) -> Iterator[AdaptedProjection]:
    if gated:
        yield AdaptedProjection("gate", width, hidden, False, positions)
    yield AdaptedProjection("up", width, hidden, False, positions)
    yield AdaptedProjection("down", hidden, width, True, positions)


def adapter_layer(
    config: TransformerConfig | GeneratorConfig, stack: str, lora: LoraConfig, *, has_experts: bool = False
) -> LayerSpec:
    """The adapters of one layer of a stack.

    Args:
        config: The adapted module.
        stack: Name of the layers that are adapted, such as `blocks`.
        lora: Rank and targets.
        has_experts: Whether the layer has experts, which have no adapters, in place of its feed-forward layer.
    """
    left_out = FEED_FORWARD_PROJECTIONS if has_experts else ()
    targets = [
        projection
        for projection in adapted_projections(config)
        if projection.name in lora.targets and projection.name not in left_out
    ]
    rank = lora.rank
    hidden = sum((projection.positions * rank for projection in targets), start=ZERO)
    return LayerSpec(
        name=f"{stack}_lora",
        part=lora.name,
        kernels=tuple(kernel for projection in targets for kernel in _kernels(projection, rank)),
        parameters=sum(rank * (target.inputs if target.split_by_rows else target.outputs) for target in targets),
        replicated_parameters=sum(
            rank * (target.outputs if target.split_by_rows else target.inputs) for target in targets
        ),
        saved=saved_by_policy(SavedActivations(replicated=hidden), SavedActivations()),
        output_elements=ZERO,
    )


def _kernels(projection: AdaptedProjection, rank: int) -> Iterator[Kernel]:
    """The adapter's two matmuls; tensor ranks divide the one whose large side they divide in the projection."""
    for name, inputs, outputs, split in (
        ("down", projection.inputs, rank, projection.split_by_rows),
        ("up", rank, projection.outputs, not projection.split_by_rows),
    ):
        yield matmul_of_rows(
            f"{projection.name}_lora_{name}",
            inputs,
            outputs,
            projection.positions,
            split=split,
            split_by="rows" if projection.split_by_rows else "columns",
        )
