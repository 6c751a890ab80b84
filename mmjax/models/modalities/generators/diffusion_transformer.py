"""Diffusion transformers in pieces: an embedding of patches, conditions and time; stacks of blocks; a head with a loss.

Published forms are DiT (arXiv 2212.09748, conditions in context), Stable Diffusion 3 (arXiv 2403.03206) and Flux.1.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from configs.architectures import DiTConfig
from mmjax.models.layers.feed_forward import MLP
from mmjax.models.layers.linear import Linear
from mmjax.models.modalities.generators.denoising import (
    ConditionedLatents,
    Conditions,
    Images,
    conditions_and_images,
    denoising_output,
    flatten_rows,
    noisy_images,
    with_dropout,
)
from mmjax.models.modalities.generators.diffusion_transformer_blocks import (
    ImageTokens,
    Modulation,
    Rows,
    build_block,
    modulate,
)
from mmjax.models.modalities.generators.unet import depth_to_space, space_to_depth, timestep_embedding
from mmjax.models.structure.module import ModuleInputs, ModuleOutput, Piece, PieceModule
from sharding.axes import Axes

TIME_WIDTH = 256  # channels of the sinusoidal embedding of time and guidance
GUIDANCE_SCALE = 1000.0  # time steps that correspond to a guidance scale of 1 in the embedding
MAX_PERIOD = 10_000.0


class DiTEmbedding(PieceModule):
    """Embeds noisy patches, conditions and time; the output's positions are laid out as `ImageTokens`."""

    def __init__(self, config: DiTConfig) -> None:
        """Creates the projections of patches and conditions and the MLPs of the modulating embedding."""
        self.config = config
        self.batch_keys = ("samples", "seed_and_step", *(() if config.autoencoder else ("images",)))
        width = config.width
        self.patches = Linear(config.patch_channels, width, bias=True)
        self.conditions = Linear(config.condition_width, width, bias=True)
        self.time = MLP(TIME_WIDTH, width, width, activation="silu")
        self.pooled = MLP(config.pooled, width, width, activation="silu") if config.pooled else None
        has_guidance = config.distilled_guidance is not None
        self.guidance = MLP(TIME_WIDTH, width, width, activation="silu") if has_guidance else None

    def __call__(self, x: Conditions | ConditionedLatents, batch: ModuleInputs, axes: Axes) -> Rows:
        """Adds noise to the images of a batch and embeds them."""
        conditions, images = conditions_and_images(x, batch)
        if self.config.autoencoder:
            images = images.astype(conditions.dtype)  # as they reach the head
        noisy = noisy_images(self.config, images, batch)
        conditions = with_dropout(self.config, conditions, batch)
        tokens = self.embed(noisy.noisy, noisy.time, conditions, axes, images)
        return tokens.rows(len(batch["samples"]))

    @jax.named_scope("embedding")
    def embed(
        self,
        maps: Images,
        time: Float[Array, " b"],
        conditions: Float[Array, "b q k"],
        axes: Axes,
        carried: Images | None = None,
    ) -> ImageTokens:
        """Embeds noisy images or latents, in the precision of the conditions.

        Args:
            maps: Noisy images or latents.
            time: Time steps, whole or not.
            conditions: Conditions of each image.
            axes: Mesh axes.
            carried: Latents without noise, which the head takes; None in generation, where it takes none.
        """
        config, dtype = self.config, conditions.dtype
        cells = space_to_depth(maps.astype(dtype), config.patch)
        patches = self.patches(cells.reshape(len(maps), config.patches, -1), axes)  # [b, n, d]
        if config.positions == "sinusoidal":
            patches = patches + jnp.asarray(patch_positions(config), dtype)[None]
        return ImageTokens(
            self._modulating_embedding(time, conditions, axes)[:, None],
            self.conditions(conditions, axes),
            patches,
            _carry(carried, len(maps), dtype, config),
        )

    def _modulating_embedding(
        self, time: Float[Array, " b"], conditions: Float[Array, "b q k"], axes: Axes
    ) -> Float[Array, "b d"]:
        """Embeds the time, the guidance scale that a distilled model reads, and the pooled conditions."""
        config, dtype = self.config, conditions.dtype
        embedding = self.time(timestep_embedding(time, TIME_WIDTH).astype(dtype), axes)
        if self.guidance is not None:
            scale = jnp.full_like(time, GUIDANCE_SCALE * (config.distilled_guidance or 0.0))
            embedding = embedding + self.guidance(timestep_embedding(scale, TIME_WIDTH).astype(dtype), axes)
        if self.pooled is not None:
            embedding = embedding + self.pooled(jnp.mean(conditions[..., : config.pooled], axis=1), axes)
        return embedding


class DiTHead(PieceModule):
    """The modulated norm and the projection to patches, and the loss of the predictions."""

    def __init__(self, config: DiTConfig) -> None:
        """Creates modulation and projection."""
        self.config = config
        self.batch_keys = ("weights", "samples", "seed_and_step", *(() if config.autoencoder else ("images",)))
        self.modulation = Modulation(config.width, 2)
        self.leave = Linear(config.width, config.patch_channels, bias=True, zero=True)

    def __call__(self, x: Rows, batch: ModuleInputs, axes: Axes) -> ModuleOutput:
        """Returns the loss, and each image's error; noise and times are drawn again as in `DiTEmbedding`.

        Args:
            x: Positions after the last block.
            batch: `weights` [r, g] of the images in the loss, 0 where there is no image, `samples` [r, g], the seed
                and the step, and the images where there is no autoencoder.
            axes: Mesh axes.
        """
        tokens = ImageTokens.of_rows(x, self.config)
        latents = _uncarry(tokens.carried, self.config) if self.config.autoencoder else flatten_rows(batch["images"])
        noisy = noisy_images(self.config, latents.astype(jnp.float32), batch)
        return denoising_output(self.config, noisy, self.predict(tokens, axes), batch, axes)

    @jax.named_scope("head")
    def predict(self, tokens: ImageTokens, axes: Axes) -> Images:
        """Returns the prediction for every image, float32."""
        rows, columns = self.config.patch_grid
        scale, shift = self.modulation(tokens.embedding, axes)
        cells = self.leave(modulate(tokens.patches, shift, scale), axes)  # [b, n, c]
        maps = cells.reshape(len(cells), rows, columns, self.config.patch_channels)
        return depth_to_space(maps, self.config.patch).astype(jnp.float32)


def dit_pieces(config: DiTConfig) -> tuple[Piece, ...]:
    """Returns the pieces of the transformer; every run of equal blocks is a stack."""
    stacks = tuple(
        Piece(name=run.name, part=config.name, build=functools.partial(build_block, config, run), layers=run.count)
        for run in config.block_runs
    )
    embed = Piece(name="embed", part=config.name, build=lambda: DiTEmbedding(config))
    return (embed, *stacks, Piece(name="head", part=config.name, build=lambda: DiTHead(config)))


def dit_prediction(
    config: DiTConfig,
    pieces: Mapping[str, Any],
    maps: Images,
    time: Float[Array, " b"],
    conditions: Float[Array, "b q k"],
) -> Images:
    """Computes the prediction for noisy images or latents, float32, on one device.

    Args:
        config: The generator.
        pieces: Its pieces by name, with their parameters; of a stack, its layers in order.
        maps: Noisy images or latents.
        time: Time steps, whole or not.
        conditions: Conditions of each image.
    """
    x = pieces["embed"].embed(maps, time, conditions, Axes()).rows(len(maps))
    for run in config.block_runs:
        for block in pieces[run.name]:
            x = block(x, {}, Axes())
    return pieces["head"].predict(ImageTokens.of_rows(x, config), Axes())


def patch_positions(config: DiTConfig) -> Float[np.ndarray, "n d"]:
    """Sinusoidal positions of an image's patches: half of the width for the column, half for the row."""
    rows, columns = config.patch_grid
    grid = config.position_grid
    top, left = ((grid - rows) // 2, (grid - columns) // 2) if grid else (0, 0)
    scale = config.position_base / grid if grid and config.position_base else 1.0
    row, column = np.mgrid[top : top + rows, left : left + columns].reshape(2, -1) * scale
    return np.concatenate([_waves(column, config.width // 2), _waves(row, config.width // 2)], axis=-1)


def _waves(positions: Float[np.ndarray, " n"], width: int) -> Float[np.ndarray, "n {width}"]:
    """Sines, then cosines, with wavelengths from 2π to 20,000π."""
    frequencies = MAX_PERIOD ** (-np.arange(width // 2) / (width // 2))
    angles = positions[:, None] * frequencies[None]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32)


def _carry(latents: Images | None, images: int, dtype: Any, config: DiTConfig) -> Float[Array, "b m d"]:
    """Reshapes latents to whole positions, padded with zeros; zeros alone without latents."""
    shape = (images, config.carried_positions, config.width)
    if latents is None or not config.carried_positions:
        return jnp.zeros(shape, dtype)
    flat = latents.reshape(images, -1).astype(dtype)
    return jnp.pad(flat, ((0, 0), (0, shape[1] * shape[2] - flat.shape[1]))).reshape(shape)


def _uncarry(carried: Float[Array, "b m d"], config: DiTConfig) -> Images:
    """The inverse of `_carry`."""
    height, width, channels = config.latent_shape
    flat = carried.reshape(len(carried), -1)[:, : height * width * channels]
    return flat.reshape(-1, height, width, channels)
