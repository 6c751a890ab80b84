"""Low-rank adapters as layers beside those that they adapt."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from configs.architectures import BackboneConfig, GeneratorConfig
from configs.lora import LoraConfig
from configs.transformer import TransformerConfig
from sharding.specs.generator import transformer_blocks
from sharding.specs.layer import ZERO, Kernel, LayerSpec, PerLoad, SavedActivations, saved_by_policy


class AdaptedProjection(NamedTuple):
    """A matmul that may have an adapter; `each`: how many positions, of what the load counts, go through it."""

    name: str
    inputs: int
    outputs: int
    split_by_rows: bool
    positions: PerLoad


@functools.singledispatch
def adapted_projections(config: Any) -> Iterator[AdaptedProjection]:
    """The projections of one layer of a module. A new kind registers its own, by the type of its configuration."""
    raise TypeError(f"no projections are known of a {type(config).__name__}; register them with projections")


@adapted_projections.register
def _(config: TransformerConfig) -> Iterator[AdaptedProjection]:
    yield from _attention(config.width, config.width, config.kv_width, PerLoad(1), PerLoad(1))
    yield from _fed(config.width, config.ffn, config.gated, PerLoad(1))


@adapted_projections.register
def _(config: BackboneConfig) -> Iterator[AdaptedProjection]:
    yield from _attention(config.width, config.width, config.kv_width, PerLoad(1), PerLoad(1))
    if config.experts is None:  # experts have no adapters
        yield from _fed(config.width, config.ffn, config.gated, PerLoad(1))


@adapted_projections.register
def _(config: GeneratorConfig) -> Iterator[AdaptedProjection]:
    for width, area in transformer_blocks(config):
        here = PerLoad(items=area)
        yield from _attention(width, width, width, here, here)
        if config.second_attention == "map":
            yield from _attention(width, width, width, here, here)
        else:
            yield from _attention(width, config.condition_width, width, here, PerLoad(items=config.conditions))
        yield from _fed(width, 4 * width, True, here)


def _attention(width: int, source: int, narrow: int, here: PerLoad, there: PerLoad) -> Iterator[AdaptedProjection]:
    yield AdaptedProjection("query", width, width, False, here)
    yield AdaptedProjection("key", source, narrow, False, there)
    yield AdaptedProjection("value", source, narrow, False, there)
    yield AdaptedProjection("output", width, width, True, here)


def _fed(width: int, hidden: int, gated: bool, here: PerLoad) -> Iterator[AdaptedProjection]:
    if gated:
        yield AdaptedProjection("gate", width, hidden, False, here)
    yield AdaptedProjection("up", width, hidden, False, here)
    yield AdaptedProjection("down", hidden, width, True, here)


def adapter_layer(config: TransformerConfig | GeneratorConfig, stack: str, lora: LoraConfig) -> LayerSpec:
    """The adapters of one layer of the stack of that name."""
    found = [each for each in adapted_projections(config) if each.name in lora.targets]
    rank = lora.rank
    kernels = tuple(kernel for each in found for kernel in _kernels(each, rank))
    split = sum(rank * (each.inputs if each.split_by_rows else each.outputs) for each in found)
    whole = sum(rank * (each.outputs if each.split_by_rows else each.inputs) for each in found)
    inner = sum((each.positions * rank for each in found), start=ZERO)
    return LayerSpec(
        f"{stack}_lora",
        lora.name,
        kernels,
        split,
        whole,
        saved_by_policy(SavedActivations(replicated=inner), SavedActivations()),
        ZERO,
    )


def _kernels(of: AdaptedProjection, rank: int) -> Iterator[Kernel]:
    """Down and up; ranks divide the one whose large side they divide."""
    for name, inputs, outputs, split in (
        ("down", of.inputs, rank, of.split_by_rows),
        ("up", rank, of.outputs, not of.split_by_rows),
    ):
        work, moved = of.positions * (2 * inputs * outputs), of.positions * (inputs + outputs)
        yield Kernel(f"{of.name}_lora_{name}", "matmul", work, moved, inputs * outputs, split)
