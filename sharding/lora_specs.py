"""Low-rank adapters as layers beside those that they adapt."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from configs.architectures import BackboneConfig, GeneratorConfig
from configs.lora import LoraConfig
from configs.transformer import TransformerConfig
from sharding.generator_specs import transformers
from sharding.layer_spec import NOTHING, Amount, Kept, Kernel, LayerSpec, same_kept


class Projection(NamedTuple):
    """A matmul that may have an adapter; `each`: how many positions, of what the load counts, go through it."""

    name: str
    inputs: int
    outputs: int
    rows: bool
    each: Amount


@functools.singledispatch
def projections(config: Any) -> Iterator[Projection]:
    """The projections of one layer of a module. A new kind registers its own, by the type of its configuration."""
    raise TypeError(f"no projections are known of a {type(config).__name__}; register them with projections")


@projections.register
def _(config: TransformerConfig) -> Iterator[Projection]:
    yield from _attention(config.width, config.width, config.kv_width, Amount(1), Amount(1))
    yield from _fed(config.width, config.ffn, config.gated, Amount(1))


@projections.register
def _(config: BackboneConfig) -> Iterator[Projection]:
    yield from _attention(config.width, config.width, config.kv_width, Amount(1), Amount(1))
    if config.experts is None:  # experts have no adapters
        yield from _fed(config.width, config.ffn, config.gated, Amount(1))


@projections.register
def _(config: GeneratorConfig) -> Iterator[Projection]:
    for width, area in transformers(config):
        here = Amount(items=area)
        yield from _attention(width, width, width, here, here)
        if config.second_attention == "map":
            yield from _attention(width, width, width, here, here)
        else:
            yield from _attention(width, config.condition_width, width, here, Amount(items=config.conditions))
        yield from _fed(width, 4 * width, True, here)


def _attention(width: int, source: int, narrow: int, here: Amount, there: Amount) -> Iterator[Projection]:
    yield Projection("query", width, width, False, here)
    yield Projection("key", source, narrow, False, there)
    yield Projection("value", source, narrow, False, there)
    yield Projection("output", width, width, True, here)


def _fed(width: int, hidden: int, gated: bool, here: Amount) -> Iterator[Projection]:
    if gated:
        yield Projection("gate", width, hidden, False, here)
    yield Projection("up", width, hidden, False, here)
    yield Projection("down", hidden, width, True, here)


def adapter_layer(config: TransformerConfig | GeneratorConfig, stack: str, lora: LoraConfig) -> LayerSpec:
    """The adapters of one layer of the stack of that name."""
    found = [each for each in projections(config) if each.name in lora.targets]
    rank = lora.rank
    kernels = tuple(kernel for each in found for kernel in _kernels(each, rank))
    split = sum(rank * (each.inputs if each.rows else each.outputs) for each in found)
    whole = sum(rank * (each.outputs if each.rows else each.inputs) for each in found)
    inner = sum((each.each * rank for each in found), start=NOTHING)
    return LayerSpec(f"{stack}_lora", lora.name, kernels, split, whole, same_kept(Kept(whole=inner), Kept()), NOTHING)


def _kernels(of: Projection, rank: int) -> Iterator[Kernel]:
    """Down and up; ranks divide the one whose large side they divide."""
    for name, inputs, outputs, split in (("down", of.inputs, rank, of.rows), ("up", rank, of.outputs, not of.rows)):
        work, moved = of.each * (2 * inputs * outputs), of.each * (inputs + outputs)
        yield Kernel(f"{of.name}_lora_{name}", "matmul", work, moved, inputs * outputs, split)
