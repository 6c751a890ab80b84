"""Kinds of attention in the layers of one stack, which differ in masks and rotations, not in their parameters.

The backbone's blocks read them, in training and with a KV cache.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from configs.attention.attention_kinds import AttentionKind, AttentionTemperature
from configs.attention.rope import rotary_frequencies
from configs.modules.backbone import BackboneConfig
from mmjax.models.layers.context_parallel import context_positions, mask_of_rank
from mmjax.models.layers.layer_kinds import InputsOfKinds
from mmjax.models.layers.linear import NO_AXES
from mmjax.models.layers.positions import Rotation, rotary_cos_sin
from mmjax.models.layers.transformer import SharedInputs
from mmjax.models.structure.module import ModuleInputs
from pallas_kernels.packed_attention import SegmentMask, make_segment_mask
from sharding.axes import Axes

NO_WINDOW = 2**30
"""Window that no row exceeds, for global layers beside local ones, so that their masks have the same form."""


def block_inputs(config: BackboneConfig, batch: ModuleInputs, axes: Axes = NO_AXES) -> InputsOfKinds:
    """Computes the masks and rotations of this rank's positions, for every one of `config.attention_kinds`."""
    positions = context_positions(batch["positions"], axes)
    inputs = tuple(
        SharedInputs(mask_of_rank(causal_mask(config, batch, kind), axes), backbone_rotary(config, positions, kind))
        for kind in config.attention_kinds
    )
    return inputs[0] if len(inputs) == 1 else inputs


def causal_mask(config: BackboneConfig, batch: ModuleInputs, kind: AttentionKind = "global") -> SegmentMask:
    """Each position attends to earlier positions of its segment that are in the trunk (branch 0) or in its own branch.

    So several questions can follow one image, which is encoded once, and no answer leaks into another question. Where
    the batch has `blocks`, the positions of a block attend to later positions of the block too. Local layers attend
    only to positions of the window, chunked layers only to positions of the chunk.
    """
    blocks = {"blocks": batch["blocks"]} if "blocks" in batch else {}
    windows = {}
    if config.attention_window:
        window = config.attention_window if kind == "local" else NO_WINDOW
        windows = {"positions": batch["positions"], "window": window}
    segments, ordered = batch["segments"], True
    if kind == "chunked":  # branches have positions of the same chunks, and follow one another
        segments, ordered = chunk_segments(segments, batch["positions"], config.attention_chunk), False
    return make_segment_mask(segments, branches=batch["branches"], causal=True, ordered=ordered, **blocks, **windows)


def chunk_segments(segments: Int[Array, "r s"], positions: Int[Array, "r s"], chunk: int) -> Int[Array, "r s"]:
    """Numbers the chunks of a row's segments, from 1 and ascending from segment to segment; 0 outside of segments."""
    most = -(-segments.shape[1] // chunk)  # chunks of a segment
    return jnp.where(segments > 0, (segments - 1) * most + positions // chunk + 1, 0)


def backbone_rotary(
    config: BackboneConfig, positions: Int[Array, "r s *axes"], kind: AttentionKind = "global"
) -> Rotation | None:
    """Computes the rotation of queries and keys; None where the backbone has learned positions.

    Args:
        config: The backbone.
        positions: `[r, s]`, or `[r, s, 3]` of (time, row, column), of which each pair of channels rotates by one. Where
            all three are alike, as in text, that is the rotation at `[r, s]`.
        kind: Kind of attention of the layer.
    """
    if config.positions != "rotary":
        return None
    rotation = _rotation(config, positions, kind)
    if config.attention_temperature:
        scale = jnp.ones_like(rotation.cos[..., :1])
        if kind == "unrotated":
            scale = query_scale(config.attention_temperature, positions)
        rotation = rotation._replace(query_scale=scale)
    if "unrotated" in config.attention_kinds and config.qk_norm == "rotated":
        rotation = rotation._replace(is_rotated=jnp.bool_(kind != "unrotated"))
    return rotation


def query_scale(temperature: AttentionTemperature, positions: Int[Array, "r s"]) -> Float[Array, "r s 1 1"]:
    """Computes the factor of queries at their positions."""
    steps = jnp.floor((positions.astype(jnp.float32) + 1.0) / temperature.positions)
    return (1.0 + temperature.scale * jnp.log1p(steps))[:, :, None, None]


def _rotation(config: BackboneConfig, positions: Int[Array, "r s *axes"], kind: AttentionKind) -> Rotation:
    """Computes the cosines and sines of one kind of attention."""
    scaling = config.rope_scaling
    if positions.ndim == 3:
        positions = positions[:, :, config.rope_axes]  # [r, s, half]
    if kind == "unrotated":
        ones = jnp.ones((*positions.shape, 1, config.rotary_width // 2), jnp.float32)
        return Rotation(ones, 0 * ones)
    if kind == "local" and config.local_rope_base:
        return rotary_cos_sin(positions, rotary_frequencies(config.rotary_width, config.local_rope_base))
    if scaling is None:
        return rotary_cos_sin(positions, rotary_frequencies(config.rotary_width, config.rope_base))
    frequencies = scaling.frequencies(config.rotary_width, config.rope_base)
    return rotary_cos_sin(positions, frequencies, scaling.attention_scaling)
