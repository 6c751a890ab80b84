"""Diffusion transformers as layers, counted per image: an embedding, runs of equal blocks, and a head."""

import math
from collections.abc import Iterator

from configs.architectures import DiTConfig
from configs.modules.diffusion_transformer import DiTBlockRun
from sharding.specs.layers.image_kernels import ImageKernel, attention, elementwise, image_layer, linear
from sharding.specs.layers.layer import Kernel, LayerSpec, PerLoad

TIME_WIDTH = 256
"""Channels of the sinusoidal embedding, as in `mmjax.models.modalities.generators.diffusion_transformer`."""


def dit_embedding(config: DiTConfig) -> LayerSpec:
    """The embedding of patches, conditions and time."""
    inputs = math.prod(config.latent_shape) + config.conditions * config.condition_width
    return image_layer(config, "embed", _embedding(config), inputs, _positions(config))


def dit_block_runs(config: DiTConfig) -> tuple[tuple[LayerSpec, int], ...]:
    """Pairs (block, count) of the runs of equal blocks."""
    size = _positions(config)
    return tuple(
        (image_layer(config, run.name, _block(config, run), size, size), run.count) for run in config.block_runs
    )


def dit_head(config: DiTConfig) -> LayerSpec:
    """The modulated norm, the projection to patches and the loss."""
    return image_layer(config, "head", _head(config), _positions(config))


def dit_splits(config: DiTConfig) -> tuple[tuple[str, int], ...]:
    """The sizes that tensor parallelism divides: pairs (name, size)."""
    autoencoder = (("autoencoder.groups", config.autoencoder.groups),) if config.autoencoder else ()
    return (("heads", config.heads), ("ffn", config.ffn), *autoencoder)


def _positions(config: DiTConfig) -> int:
    """Elements of an image's positions between blocks."""
    return config.positions_per_image * config.width


def _embedding(config: DiTConfig) -> Iterator[ImageKernel]:
    width = config.width
    yield linear("patches", config.patch_channels, width, config.patches, bias=True, split=False)
    yield linear("conditions", config.condition_width, width, config.conditions, bias=True, split=False)
    yield from _mlp("time", TIME_WIDTH, width, width, 1)
    if config.distilled_guidance is not None:
        yield from _mlp("guidance", TIME_WIDTH, width, width, 1)
    if config.pooled:
        yield from _mlp("pooled", config.pooled, width, width, 1)


def _head(config: DiTConfig) -> Iterator[ImageKernel]:
    yield _modulation(config, 2)
    yield _modulated_norm("norm", config.width, config.patches)
    yield linear("leave", config.width, config.patch_channels, config.patches, bias=True, split=False)


def _block(config: DiTConfig, run: DiTBlockRun) -> Iterator[ImageKernel]:
    """The kernels of the blocks in `mmjax.models.modalities.generators.diffusion_transformer_blocks`."""
    width, together = config.width, config.conditions + config.patches
    yield elementwise("split", 2 * width * config.positions_per_image)
    if run.stream == "double":
        yield from _two_streams(config, run)
    elif run.stream == "single":
        yield _modulation(config, 3)
        yield from _normed_projections(config, together)
        yield attention("attention", width, config.head_width, together, together)
        yield linear("output", width, width, together, split_by_rows=True)
        yield from _mlp("mlp", width, config.ffn, width, together)
        yield elementwise("residual", 3 * width * together)
    else:
        yield _modulation(config, 6)
        yield from _normed_projections(config, together)
        yield attention("attention", width, config.head_width, together, together)
        yield from _attention_output(config, together)
        yield from _feed_forward(config, together)


def _two_streams(config: DiTConfig, run: DiTBlockRun) -> Iterator[ImageKernel]:
    width, conditions, patches = config.width, config.conditions, config.patches
    yield _modulation(config, 9 if run.has_image_attention else 6)
    yield _modulation(config, 6 if run.updates_conditions else 2)
    for tokens in (conditions, patches):
        yield from _normed_projections(config, tokens)
    together = conditions + patches
    yield attention("attention", width, config.head_width, together, together)
    yield from _attention_output(config, patches)
    if run.has_image_attention:
        yield from _normed_projections(config, patches)
        yield attention("image_attention", width, config.head_width, patches, patches)
        yield from _attention_output(config, patches)
    yield from _feed_forward(config, patches)
    if run.updates_conditions:
        yield from _attention_output(config, conditions)
        yield from _feed_forward(config, conditions)


def _normed_projections(config: DiTConfig, tokens: int) -> Iterator[ImageKernel]:
    """Modulated norm, then queries, keys and values, with norms and rotation where there are some."""
    width = config.width
    yield _modulated_norm("norm", width, tokens)
    yield linear("query_key_value", width, 3 * width, tokens, bias=True)
    if config.qk_norm:
        kernel = Kernel("qk_norm", "memory", activations=PerLoad(items=4 * width * tokens))
        yield ImageKernel(kernel, replicated=2 * config.head_width, saved=2 * width * tokens)
    if config.positions == "rotary":
        yield ImageKernel(Kernel("rotary", "memory", activations=PerLoad(items=4 * width * tokens)))


def _attention_output(config: DiTConfig, tokens: int) -> Iterator[ImageKernel]:
    """The end of the first half of a block: output projection, gated residual."""
    yield linear("output", config.width, config.width, tokens, bias=True, split_by_rows=True)
    yield elementwise("residual", 3 * config.width * tokens)


def _feed_forward(config: DiTConfig, tokens: int) -> Iterator[ImageKernel]:
    """The second half of a block: modulated norm, MLP, gated residual."""
    yield _modulated_norm("mlp_norm", config.width, tokens)
    yield from _mlp("mlp", config.width, config.ffn, config.width, tokens)
    yield elementwise("residual", 3 * config.width * tokens)


def _mlp(name: str, inputs: int, hidden: int, outputs: int, tokens: int) -> Iterator[ImageKernel]:
    yield linear(f"{name}_up", inputs, hidden, tokens, bias=True)
    yield ImageKernel(
        Kernel("activation", "memory", activations=PerLoad(items=2 * hidden * tokens)), saved=hidden * tokens
    )
    yield linear(f"{name}_down", hidden, outputs, tokens, bias=True, split_by_rows=True)


def _modulation(config: DiTConfig, vectors: int) -> ImageKernel:
    return linear("modulation", config.width, vectors * config.width, 1, bias=True, split_by_rows=True)


def _modulated_norm(name: str, width: int, tokens: int) -> ImageKernel:
    kernel = Kernel(name, "memory", activations=PerLoad(items=2 * width * tokens), split=False)
    return ImageKernel(kernel, saved=width * tokens)
