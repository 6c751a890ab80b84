"""Small copies of large configurations for `python -m mmjax.verify --shrink`: the same kinds of layers and divisions.

Heads and levels stay, because tensor parallelism divides them; widths shrink to the smallest that heads allow.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from configs.architectures import (
    AutoencoderConfig,
    BackboneConfig,
    DiTConfig,
    EncoderConfig,
    GeneratorConfig,
    LatentAttentionConfig,
    ModelConfig,
    UNetConfig,
)
from configs.attention.rope import LongRopeScaling
from configs.modules.experts import ExpertsConfig
from data.data_config import DataConfig
from data.samples.sample_format import SampleFormat
from mmjax.training.verification.layouts.divided_plans import GlobalRows
from sharding.plans.plan import Plan
from sharding.plans.unit_layers import LayerRun, stage_layers
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import ModuleGraph, module_graph

DEPTH = 4
HEAD_WIDTH = 4  # rotary positions need pairs, 2-D sine positions multiples of 4
ROPE_SECTIONS = (2, 1, 1)  # pairs that rotate by time, row and column, of heads twice as wide
CONDITION_WIDTH = 16
MAX_CONDITIONS = 8  # of a diffusion transformer, whose attention is quadratic in them
MAX_GROUPS = 8  # groups of GroupNorm: as many as there are tensor ranks on one host


def shrink_data(config: DataConfig, model: ModelConfig) -> DataConfig:
    """Returns a data configuration with smaller rows, but as many of them, because plans divide their number."""
    positions_per_token = math.lcm(*(encoder.positions_per_token for encoder in model.encoders))
    capacities = {
        field: min(encoder.max_length, 16 * positions_per_token * encoder.values_per_position)
        for field, encoder in SampleFormat.for_model(model, config.encoder_capacities).encoder_formats.items()
    }
    without = dataclasses.replace(config, isf_thresholds=())  # they belong to the large capacities
    return dataclasses.replace(
        without.with_encoder_capacities(capacities),
        tokens=min(config.tokens, 256),
        images=min(config.images, 4),
        samples=min(config.samples, 16),
    )


def shrink_model(config: ModelConfig, vocabulary: int, plans: Sequence[Plan] = ()) -> ModelConfig:
    """Makes a small model that every plan divides as it divides the large one.

    Args:
        config: The large model.
        vocabulary: Number of token ids, which the small vocabulary must hold.
        plans: Plans of the large model. Each module keeps a layer for every stage that holds layers of it, and one
            more, so that stages stay uneven.
    """
    depths = _depths(module_graph(config), plans)
    return dataclasses.replace(
        config,
        encoders=tuple(_encoder(encoder, depths[encoder.name]) for encoder in config.encoders),
        backbone=_backbone(config.backbone, depths[config.backbone.name] + config.early_blocks, vocabulary),
        generators=tuple(_generator(generator, depths[generator.name]) for generator in config.generators),
    )


def shrink_plan(
    plan: Plan, large: ModuleGraph, small: ModuleGraph, large_rows: GlobalRows, small_rows: GlobalRows
) -> Plan:
    """Makes the plan for the small model: same devices and stages, layers and capacities in about the same proportion.

    Args:
        plan: The plan of the large model.
        large, small: The modules of both models.
        large_rows, small_rows: The rows of both models.
    """
    units = [_unit(unit, large, small) for unit in plan.units]
    return dataclasses.replace(
        plan, units=tuple(_with_capacities(unit, plan.microbatches, large_rows, small_rows) for unit in units)
    )


def _depths(graph: ModuleGraph, plans: Sequence[Plan]) -> dict[str, int]:
    depths = {module.name: min(module.layer_count, DEPTH) for module in graph.modules}
    for plan in plans:
        for name, runs in _runs(plan.units, graph).items():
            depths[name] = max(depths[name], min(graph[name].layer_count, len(runs) + 1))
    return depths


def _runs(units: Sequence[UnitPlan], graph: ModuleGraph) -> dict[str, list[LayerRun]]:
    """Returns the ranges of layers of each module, one for each stage."""
    runs: dict[str, list[LayerRun]] = {}
    for unit in units:
        for stage in stage_layers(unit, graph):
            for run in stage:
                runs.setdefault(run.module, []).append(run)
    return runs


def _unit(unit: UnitPlan, large: ModuleGraph, small: ModuleGraph) -> UnitPlan:
    shares = {
        name: iter(_divided(small[name].layer_count, [last - first for _, first, last in runs]))
        for name, runs in _runs([unit], large).items()
    }
    layers = tuple(sum(next(shares[name]) for name, _, _ in stage) for stage in stage_layers(unit, large))
    return dataclasses.replace(unit, layers=layers)


def _with_capacities(unit: UnitPlan, microbatches: int, large: GlobalRows, small: GlobalRows) -> UnitPlan:
    """Sets capacities of small rows, of which the largest holds any batch, because small rows fill up differently."""
    if not unit.capacities:
        return unit
    (module,) = unit.modules
    multiple = small.values[module].per_slot * unit.parallelism.tp
    share = Fraction(small.values[module].count, large.values[module].count)
    whole = small.sufficient_capacity(module, microbatches, unit.phase_rows)
    smaller = {max(1, round(capacity * share / multiple)) * multiple for capacity in unit.capacities[:-1]}
    return dataclasses.replace(unit, capacities=(*sorted(each for each in smaller if each < whole), whole))


def _divided(total: int, weights: Sequence[int]) -> list[int]:
    """Divides a total in about the proportion of the weights, with at least 1 for each."""
    counts = [1] * len(weights)
    for _ in range(total - len(weights)):
        largest_deficit = max(range(len(weights)), key=lambda number: weights[number] / counts[number])
        counts[largest_deficit] += 1
    return counts


def _encoder(config: EncoderConfig, depth: int) -> EncoderConfig:
    """Makes a smaller encoder of the same kind."""
    width = min(config.width, HEAD_WIDTH * config.heads)
    return dataclasses.replace(config.with_depth(depth), width=width, ffn=_ffn(config.ffn, config.heads))


def _backbone(config: BackboneConfig, depth: int, vocabulary: int) -> BackboneConfig:
    sections = ROPE_SECTIONS if config.rope_sections else ()
    heads_width = config.heads * (2 * sum(sections) or HEAD_WIDTH)
    width = heads_width if sections else min(config.width, heads_width)
    attention_width = (heads_width if sections else min(config.attention_width, heads_width)) * (
        config.attention_width > 0
    )
    shallow = config.with_depth(depth)
    return dataclasses.replace(
        shallow,
        width=width,
        attention_width=attention_width,
        rope_sections=sections,
        **_partial_rotary(config, (attention_width or width) // config.heads),
        latent_attention=_latent_attention(config.latent_attention) if config.latent_attention else None,
        ffn=_ffn(config.ffn, config.heads),
        vocabulary=min(config.vocabulary, vocabulary),
        experts=_experts(shallow.experts, config.heads) if shallow.experts else None,
    )


def _partial_rotary(config: BackboneConfig, head_width: int) -> dict[str, Any]:
    """Lets one pair of channels rotate, where not all of a head does; LongRoPE has a factor for each pair."""
    rope_width = min(config.rope_width, 2)
    scaling, pairs = config.rope_scaling, (rope_width or head_width) // 2
    if isinstance(scaling, LongRopeScaling):
        factors = {name: getattr(scaling, name)[:pairs] for name in ("short_factors", "long_factors")}
        scaling = dataclasses.replace(scaling, **factors)
    return {"rope_width": rope_width, "rope_scaling": scaling}


def _latent_attention(config: LatentAttentionConfig) -> LatentAttentionConfig:
    """Makes latent vectors, keys and values of a few channels; every rank has all of a latent vector."""
    return dataclasses.replace(
        config,
        query_rank=min(config.query_rank, 2 * HEAD_WIDTH),
        kv_rank=min(config.kv_rank, 2 * HEAD_WIDTH),
        nope_width=min(config.nope_width, HEAD_WIDTH),
        rope_width=min(config.rope_width, HEAD_WIDTH),
        value_width=min(config.value_width, HEAD_WIDTH),
    )


def _experts(config: ExpertsConfig, heads: int) -> ExpertsConfig:
    """Keeps the number of experts, because expert ranks divide them, and the number chosen per token."""
    shared = _ffn(config.shared_ffn, heads) if config.shared_ffn else 0
    return dataclasses.replace(config, ffn=_ffn(config.ffn, heads), shared_ffn=shared)


@functools.singledispatch
def _generator(config: GeneratorConfig, depth: int) -> GeneratorConfig:
    """Makes a smaller generator; a user's own kinds keep their sizes."""
    del depth
    return config


@_generator.register
def _dit(config: DiTConfig, depth: int) -> DiTConfig:
    autoencoder = _autoencoder(config.autoencoder) if config.autoencoder else None
    multiple = config.patch * (autoencoder.downsampling_factor if autoencoder else 1)
    sides = tuple(min(side, 2 * multiple) for side in config.image_sides)
    width = min(config.width, HEAD_WIDTH * config.heads)
    condition_width = min(config.condition_width, CONDITION_WIDTH)
    head_width = width // config.heads
    return dataclasses.replace(
        config.with_layers(depth),
        width=width,
        ffn=_ffn(config.ffn, config.heads),
        rotary_axes=(0, head_width // 2, head_width // 2) if width < config.width else config.rotary_axes,
        image_size=sides if isinstance(config.image_size, tuple) else sides[0],
        conditions=min(config.conditions, MAX_CONDITIONS),
        condition_width=condition_width,
        pooled_width=None if config.pooled_width is None else min(config.pooled_width, condition_width),
        autoencoder=autoencoder,
    )


@_generator.register
def _unet(config: UNetConfig, depth: int) -> UNetConfig:
    del depth
    groups = math.gcd(config.groups, MAX_GROUPS)
    divisor = math.gcd(*config.widths, *config.head_widths)
    multiple = _smallest_multiple(config.widths, divisor, groups)
    coarsest = config.patch * 2 ** (len(config.widths) - 1)
    autoencoder = _autoencoder(config.autoencoder) if config.autoencoder else None
    if autoencoder:
        coarsest *= autoencoder.downsampling_factor
    sides = tuple(min(side, 2 * coarsest) for side in config.image_sides)
    return dataclasses.replace(
        config,
        widths=tuple(width // divisor * multiple for width in config.widths),
        head_width=tuple(width // divisor * multiple for width in config.head_widths),
        groups=groups,
        blocks=1,
        image_size=sides if isinstance(config.image_size, tuple) else sides[0],
        condition_width=min(config.condition_width, CONDITION_WIDTH),
        autoencoder=autoencoder,
    )


def _autoencoder(config: AutoencoderConfig) -> AutoencoderConfig:
    groups = math.gcd(config.groups, MAX_GROUPS)
    divisor = math.gcd(*config.widths)
    multiple = _smallest_multiple(config.widths, divisor, groups)
    widths = tuple(width // divisor * multiple for width in config.widths)
    return dataclasses.replace(config, widths=widths, blocks=1, groups=groups)


def _smallest_multiple(widths: Sequence[int], divisor: int, groups: int) -> int:
    """Returns the smallest n, up to `divisor`, for which every width / divisor * n is divisible by 2 * groups.

    Each group of a GroupNorm then has at least two channels: over one channel it cancels the channel's bias, whose
    gradient would be 0.
    """
    multiples = (n for n in range(1, divisor) if all(width // divisor * n % (2 * groups) == 0 for width in widths))
    return next(multiples, divisor)


def _ffn(ffn: int, heads: int) -> int:
    """Returns twice the small width, if that is less than `ffn`; it is divisible by the number of heads."""
    small = 2 * HEAD_WIDTH * heads
    return small if small < ffn else ffn
