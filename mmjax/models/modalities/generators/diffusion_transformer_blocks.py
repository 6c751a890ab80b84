"""Blocks of diffusion transformers: one or two streams of tokens, modulated by the embedding of the time.

Between blocks an image is one run of positions: the embedding of its time and pooled conditions, its conditions, its
patches, and its latents where the loss needs them. So one array passes from block to block and from stage to stage.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import DiTConfig
from configs.attention.rope import rotary_frequencies
from configs.modules.diffusion_transformer import DiTBlockRun
from mmjax.models.layers.activations import recomputed
from mmjax.models.layers.attention import Attention
from mmjax.models.layers.feed_forward import MLP
from mmjax.models.layers.linear import Linear
from mmjax.models.layers.normalization import RMSNorm, standardise
from mmjax.models.layers.positions import Rotation, apply_rotary
from mmjax.models.structure.module import ModuleInputs, PieceModule
from pallas_kernels.collective_matmul import split_sequence
from pallas_kernels.packed_attention import full_attention
from sharding.axes import Axes

EPSILON = 1e-6
ROTARY_BASE = 10_000.0

Rows = Float[Array, "r s d"]
Tokens = Float[Array, "b t d"]
ConditionTokens = Float[Array, "b q d"]
PatchTokens = Float[Array, "b n d"]
Updated = tuple[ConditionTokens, PatchTokens]
Vector = Float[Array, "b 1 d"]


class ImageTokens(NamedTuple):
    """The positions of every image, `[b, ..., d]`.

    Attributes:
        embedding: Embedding of the time and the pooled conditions.
        conditions: Conditions.
        patches: Patches.
        carried: Latents, which no block changes.
    """

    embedding: Vector
    conditions: ConditionTokens
    patches: PatchTokens
    carried: Float[Array, "b m d"]

    @classmethod
    def of_rows(cls, x: Rows, config: DiTConfig) -> "ImageTokens":
        """Splits rows `[r, g p, d]` into the positions of images, by their kind."""
        images = x.reshape(-1, config.positions_per_image, x.shape[-1])  # [r g, p, d]
        first_patch = 1 + config.conditions
        ends = (1, first_patch, first_patch + config.patches)
        return cls(*jnp.split(images, ends, axis=1))

    def rows(self, count: int) -> Rows:
        """Joins the positions of images to `count` rows again."""
        joined = jnp.concatenate(self, axis=1)  # [r g, p, d]
        return joined.reshape(count, -1, joined.shape[-1])


class Modulation(nnx.Module):
    """Shifts, scales and gates of a block, projected from the embedding of the time; all are 0 at first (adaLN-Zero).

    The tensor ranks divide the embedding's channels.
    """

    def __init__(self, width: int, vectors: int) -> None:
        """Creates the projection `[d, vectors * d]`."""
        self.vectors = vectors
        self.projection = Linear(width, vectors * width, split="rows", bias=True, zero=True)

    @jax.named_scope("modulation")
    def __call__(self, embedding: Vector, axes: Axes) -> list[Vector]:
        """Returns the shifts, scales and gates, in order."""
        x = jax.nn.silu(embedding)
        x = split_sequence(x, axes.tensor, axis=-1) if axes.tensor else x
        return jnp.split(self.projection(x, axes), self.vectors, axis=-1)


def modulate(x: Tokens, shift: Vector, scale: Vector) -> Tokens:
    """Normalises the last dimension to zero mean and unit variance; then (1 + scale) x + shift, all in float32."""

    def modulated(x: Tokens, shift: Vector, scale: Vector) -> Tokens:
        normed = standardise(x.astype(jnp.float32), (-1,), EPSILON)
        return (normed * (1 + scale.astype(jnp.float32)) + shift.astype(jnp.float32)).astype(x.dtype)

    return recomputed(modulated)(x, shift, scale)


def rotary_of_images(config: DiTConfig, images: int) -> Rotation | None:
    """Returns the rotation of conditions, at (0, 0, 0), and of patches, at (0, row, column); None without rotation."""
    if config.positions != "rotary":
        return None
    rows, columns = config.patch_grid
    positions = np.zeros((config.conditions + config.patches, 3))
    positions[config.conditions :, 1:] = np.indices((rows, columns)).reshape(2, -1).T
    angles = np.concatenate(
        [
            positions[:, axis, None] * rotary_frequencies(width, ROTARY_BASE)[None]
            for axis, width in enumerate(config.rotary_axes)
            if width
        ],
        axis=-1,
    )[None, :, None]  # [1, s, 1, e / 2]
    cos, sin = (jnp.asarray(wave(angles), jnp.float32) for wave in (np.cos, np.sin))
    shape = (images, *angles.shape[1:])
    return Rotation(jnp.broadcast_to(cos, shape), jnp.broadcast_to(sin, shape))


def _attention(config: DiTConfig, biases: tuple[str, ...]) -> Attention:
    norms = [RMSNorm(config.head_width, epsilon=EPSILON) if config.qk_norm else None for _ in range(2)]
    return Attention(config.width, config.heads, biases=biases, query_norm=norms[0], key_norm=norms[1])


def _full_attention(config: DiTConfig) -> Attention:
    return _attention(config, ("query", "key", "value", "output"))


def _mlp(config: DiTConfig) -> MLP:
    return MLP(config.width, config.ffn, config.width, activation="gelu_tanh")


class DiTBlock(PieceModule):
    """Base class of blocks, from rows to rows; kinds of blocks override `update` of conditions and patches."""

    batch_keys = ()

    def __init__(self, config: DiTConfig) -> None:
        """Takes the sizes of an image."""
        self.config = config

    @jax.named_scope("block")
    def __call__(self, x: Rows, batch: ModuleInputs, axes: Axes) -> Rows:
        """Applies the block to the images of rows `[r, g p, d]`."""
        tokens = ImageTokens.of_rows(x, self.config)
        conditions, patches = self.update(tokens, rotary_of_images(self.config, len(tokens.patches)), axes)
        return tokens._replace(conditions=conditions, patches=patches).rows(len(x))

    def update(self, tokens: ImageTokens, rotary: Rotation | None, axes: Axes) -> Updated:
        """Returns the updated conditions and patches."""
        raise NotImplementedError


class PlainBlock(DiTBlock):
    """Attention, then a feed-forward layer, over conditions and patches together (arXiv 2212.09748)."""

    def __init__(self, config: DiTConfig) -> None:
        """Creates the layers."""
        super().__init__(config)
        self.modulation = Modulation(config.width, 6)
        self.attention, self.mlp = _full_attention(config), _mlp(config)

    def update(self, tokens: ImageTokens, rotary: Rotation | None, axes: Axes) -> Updated:
        """See `DiTBlock`."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulation(tokens.embedding, axes)
        x = jnp.concatenate([tokens.conditions, tokens.patches], axis=1)  # [b, t, d]
        x = x + gate * self.attention(modulate(x, shift, scale), axes, rotary=rotary)
        x = x + mlp_gate * self.mlp(modulate(x, mlp_shift, mlp_scale), axes)
        return _split_conditions(x, self.config)


class SingleStreamBlock(DiTBlock):
    """Attention and a feed-forward layer side by side, over conditions and patches together (Flux.1)."""

    def __init__(self, config: DiTConfig) -> None:
        """Creates the layers; the bias after both is the feed-forward layer's bias."""
        super().__init__(config)
        self.modulation = Modulation(config.width, 3)
        self.attention, self.mlp = _attention(config, ("query", "key", "value")), _mlp(config)

    def update(self, tokens: ImageTokens, rotary: Rotation | None, axes: Axes) -> Updated:
        """See `DiTBlock`."""
        shift, scale, gate = self.modulation(tokens.embedding, axes)
        x = jnp.concatenate([tokens.conditions, tokens.patches], axis=1)  # [b, t, d]
        normed = modulate(x, shift, scale)
        x = x + gate * (self.attention(normed, axes, rotary=rotary) + self.mlp(normed, axes))
        return _split_conditions(x, self.config)


class TokenStream(nnx.Module):
    """The layers that conditions or patches have of their own in a block with two streams."""

    def __init__(self, config: DiTConfig, *, is_updated: bool = True, has_own_attention: bool = False) -> None:
        """Creates the layers.

        Args:
            config: The generator.
            is_updated: Whether the stream has an output; without, it has scale and shift of its attention input alone.
            has_own_attention: Whether it has a second attention, among its own tokens.
        """
        self.modulation = Modulation(config.width, (9 if has_own_attention else 6) if is_updated else 2)
        self.attention = _full_attention(config)
        if not is_updated:
            self.attention.output = None  # pyright: ignore[reportAttributeAccessIssue]  (no output is projected)
        self.own_attention = _full_attention(config) if has_own_attention else None
        self.mlp = _mlp(config) if is_updated else None


class DoubleStreamBlock(DiTBlock):
    """Conditions and patches have weights of their own, and attend to both together (arXiv 2403.03206)."""

    def __init__(self, config: DiTConfig, run: DiTBlockRun) -> None:
        """Creates the two streams."""
        super().__init__(config)
        self.conditions = TokenStream(config, is_updated=run.updates_conditions)
        self.patches = TokenStream(config, has_own_attention=run.has_image_attention)

    def update(self, tokens: ImageTokens, rotary: Rotation | None, axes: Axes) -> Updated:
        """See `DiTBlock`."""
        patch_modulation = self.patches.modulation(tokens.embedding, axes)
        condition_modulation = self.conditions.modulation(tokens.embedding, axes)
        if self.conditions.mlp is None:
            condition_modulation = condition_modulation[::-1]  # the published order here is scale, shift
        normed_conditions = modulate(tokens.conditions, condition_modulation[0], condition_modulation[1])
        normed_patches = modulate(tokens.patches, patch_modulation[0], patch_modulation[1])
        for_conditions, for_patches = self._attend(normed_conditions, normed_patches, rotary, axes)
        patches = tokens.patches + patch_modulation[2] * self.patches.attention.project_output(for_patches, axes)
        if self.patches.own_attention is not None:
            shift, scale, gate = patch_modulation[6:]
            normed = modulate(tokens.patches, shift, scale)
            patches = patches + gate * self.patches.own_attention(normed, axes)
        patches = _add_mlp(self.patches, patches, patch_modulation, axes)
        if self.conditions.mlp is None:
            return tokens.conditions, patches
        attended = self.conditions.attention.project_output(for_conditions, axes)
        conditions = tokens.conditions + condition_modulation[2] * attended
        return _add_mlp(self.conditions, conditions, condition_modulation, axes), patches

    def _attend(
        self, conditions: ConditionTokens, patches: PatchTokens, rotary: Rotation | None, axes: Axes
    ) -> tuple[Float[Array, "b q h e"], Float[Array, "b n h e"]]:
        """Attends from both streams to both; returns the heads' outputs, before the output projections."""
        both = (self.conditions.attention, conditions), (self.patches.attention, patches)
        projected = [attention.project_query_key_value(x, None, axes) for attention, x in both]
        query, key, value = (jnp.concatenate(pair, axis=1) for pair in zip(*projected, strict=True))
        if rotary is not None:
            query, key = apply_rotary(query, rotary), apply_rotary(key, rotary)
        return _split_conditions(full_attention(query, key, value), self.config)


def _add_mlp(stream: TokenStream, x: Tokens, modulation: list[Vector], axes: Axes) -> Tokens:
    """Adds the feed-forward layer's output, for a stream that has one."""
    assert stream.mlp is not None
    shift, scale, gate = modulation[3:6]
    return x + gate * stream.mlp(modulate(x, shift, scale), axes)


def _split_conditions(x: jax.Array, config: DiTConfig) -> tuple[jax.Array, jax.Array]:
    """Splits `[b, q + n, ...]` into conditions and patches."""
    return x[:, : config.conditions], x[:, config.conditions :]


def build_block(config: DiTConfig, run: DiTBlockRun) -> DiTBlock:
    """Builds one block of a run of equal blocks."""
    if run.stream == "double":
        return DoubleStreamBlock(config, run)
    return SingleStreamBlock(config) if run.stream == "single" else PlainBlock(config)
