"""Global and local attention in the layers of one stack, which differ in what they read, not in their parameters."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from configs.backbone import AttentionKind, BackboneConfig
from configs.rope import rotary_frequencies
from mmjax.models.layers.context_parallel import context_positions, mask_of_rank
from mmjax.models.layers.linear import NO_AXES
from mmjax.models.layers.positions import RotaryCosSin, rotary_cos_sin
from mmjax.models.layers.transformer import SharedInputs
from mmjax.models.structure.module import ModuleInputs
from pallas_kernels.packed_attention import SegmentMask, make_segment_mask
from sharding.axes import Axes

NO_WINDOW = 2**30
"""A window that no row exceeds, of global layers beside local ones: their masks have the same form."""

BlockInputs = SharedInputs | tuple[SharedInputs, ...]
"""What the blocks of a stage read: alike for all, or for every one of `BackboneConfig.attention_kinds`."""


def block_inputs(config: BackboneConfig, batch: ModuleInputs, axes: Axes = NO_AXES) -> BlockInputs:
    """Masks and rotations of packed rows, of this rank's positions."""
    positions = context_positions(batch["positions"], axes)
    inputs = tuple(
        SharedInputs(mask_of_rank(causal_mask(config, batch, kind), axes), backbone_rotary(config, positions, kind))
        for kind in config.attention_kinds
    )
    return inputs[0] if len(inputs) == 1 else inputs


def block_inputs_of_layer(config: BackboneConfig, inputs: BlockInputs, layer: int | jax.Array) -> SharedInputs:
    """What the block of a layer reads; in a scan over layers the number is traced, and it is chosen on the device."""
    if isinstance(inputs, SharedInputs):
        return inputs
    if isinstance(layer, int):
        return inputs[config.kind_of_layers[layer]]
    kind = jnp.array(config.kind_of_layers, jnp.int32)[layer]

    def choose(*of_kinds: Any) -> Any:
        return of_kinds[0] if all(each is of_kinds[0] for each in of_kinds) else lax.select_n(kind, *of_kinds)

    return jax.tree.map(choose, *inputs)


def causal_mask(config: BackboneConfig, batch: ModuleInputs, kind: AttentionKind = "global") -> SegmentMask:
    """Each position attends to earlier positions of its segment that are in the trunk (branch 0) or in its own branch.

    So several questions can follow one image, which is encoded once, and no answer leaks into another question. Where
    the batch has `blocks`, the positions of a block attend to later ones of it too. In local layers only positions of
    the window are attended to.
    """
    blocks = {"blocks": batch["blocks"]} if "blocks" in batch else {}
    windows = {}
    if config.attention_window:
        window = config.attention_window if kind == "local" else NO_WINDOW
        windows = {"positions": batch["positions"], "window": window}
    return make_segment_mask(batch["segments"], branches=batch["branches"], causal=True, **blocks, **windows)


def backbone_rotary(
    config: BackboneConfig, positions: Int[Array, "r s *axes"], kind: AttentionKind = "global"
) -> RotaryCosSin | None:
    """Rotation of queries and keys; None where the backbone has learned positions.

    Args:
        config: The backbone.
        positions: `[r, s]`, or `[r, s, 3]` of (time, row, column), of which each pair of channels rotates by one. Where
            all three are alike, as in text, that is the rotation at `[r, s]`.
        kind: Kind of attention of the layer.
    """
    if config.positions != "rotary":
        return None
    scaling = config.rope_scaling
    if positions.ndim == 3:
        positions = positions[:, :, config.rope_axes]  # [r, s, half]
    if kind == "local" and config.local_rope_base:
        return rotary_cos_sin(positions, rotary_frequencies(config.rotary_width, config.local_rope_base))
    if scaling is None:
        return rotary_cos_sin(positions, rotary_frequencies(config.rotary_width, config.rope_base))
    frequencies = scaling.frequencies(config.rotary_width, config.rope_base)
    return rotary_cos_sin(positions, frequencies, scaling.attention_scaling)
