"""A model with every kind of layer that compiles in seconds, and batches for it made by hand."""

import dataclasses

import numpy as np

from configs.architectures import (
    AudioConfig,
    AutoencoderConfig,
    BackboneConfig,
    DiTConfig,
    ModelConfig,
    ScaledLinearSchedule,
    UNetConfig,
    VisionConfig,
)
from configs.modules.backbone import NEWLINE

AUDIO = AudioConfig(width=8, depth=2, heads=2, ffn=12, mels=3, merge=2)
VISION = VisionConfig(width=8, depth=2, heads=2, ffn=12, patch=2, merge=2)
BACKBONE = BackboneConfig(vocabulary=24, width=16, depth=3, heads=4, kv_heads=2, ffn=24)
GENERATOR = UNetConfig(image_size=4, patch=2, widths=(8,), head_width=4, groups=4, conditions=2, condition_width=8)
# Where the kind of generator is not the subject: a U-Net takes twice as long to compile.
TRANSFORMER_GENERATOR = DiTConfig(
    image_size=4, patch=2, width=8, heads=2, ffn=12, plain_layers=1, conditions=2, condition_width=8
)
# With what the other generator lacks: an autoencoder, a noise schedule from a table, and conditions that are dropped.
LATENT_GENERATOR = UNetConfig(
    name="painter",
    image_size=4,
    patch=1,
    widths=(8,),
    head_width=4,
    groups=4,
    pooled="none",
    conditions=1,
    condition_width=8,
    condition_dropout=0.3,
    schedule=ScaledLinearSchedule(),
    autoencoder=AutoencoderConfig(latent_channels=2, widths=(8, 16), blocks=1, groups=4),
)

PATCHES, TOKENS, IMAGES, CLIPS = 8, 12, 2, 2
"""Patches p, tokens s, generated images g and clips of a row; a clip is one backbone token."""


def tiny_model(dtype: str = "float32", **backbone: object) -> ModelConfig:
    """One encoder, backbone and generator; keywords change the backbone."""
    return ModelConfig((VISION,), dataclasses.replace(BACKBONE, **backbone), (GENERATOR,), dtype)


def tiny_batch(config: ModelConfig, rows: int = 8, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """`{module: {name: [n, ...]}}` of random values, as `GlobalBatch.arrays` has them, different in every row.

    A row holds two samples (the second with two branches behind its trunk) and two tokens of padding; two images of
    one cell each, or one and padding; clips likewise; and two generated images, of which every third has no target.
    """
    random = np.random.default_rng(seed)
    arrays = {encoder.name: _ENCODERS[type(encoder)](encoder, rows, random) for encoder in config.encoders}
    arrays[config.backbone.name] = _backbone(config, rows, random)
    return arrays | {generator.name: _generator(generator, rows, random) for generator in config.generators}


def _vision(config: VisionConfig, rows: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    cell = config.merge**2
    segments = (np.arange(PATCHES, dtype=np.int32) // cell + 1)[None].repeat(rows, axis=0)
    segments[1::3, cell:] = 0
    positions = random.integers(0, 4, (rows, PATCHES, 2)).astype(np.int32)
    if tokens := config.prefix_tokens:  # one image behind the cells of its tokens, or none
        segments[:] = 1
        segments[1::3], segments[:, tokens : config.prefix_slots * cell] = 0, 0
        positions[:, :tokens] = -1 - np.arange(tokens)[:, None]
    return {
        "patches": random.uniform(-1, 1, (rows, PATCHES, config.patch_width)).astype(np.float32),
        "segments": segments,
        "positions": positions,
    }


def _audio(config: AudioConfig, rows: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    positions = np.arange(CLIPS * config.merge, dtype=np.int32)[None].repeat(rows, axis=0)
    segments = positions // config.merge + 1
    segments[1::3, config.merge :] = 0
    return {
        "frames": random.normal(size=(rows, 2 * CLIPS * config.merge, config.mels)).astype(np.float32),
        "segments": segments,
        "positions": positions % config.merge,
    }


_ENCODERS = {VisionConfig: _vision, AudioConfig: _audio}


def _backbone(config: ModelConfig, rows: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    v = config.backbone.vocabulary
    segments = np.array([1] * 4 + [2] * 6 + [0] * 2, np.int32)[None].repeat(rows, axis=0)
    branches = np.array([0] * 4 + [0, 0, 1, 1, 2, 2] + [0] * 2, np.int32)[None].repeat(rows, axis=0)
    positions = np.array([0, 1, 2, 3, 0, 1, 2, 3, 2, 3, 0, 0], np.int32)[None].repeat(rows, axis=0)
    if config.backbone.rope_sections:  # of the first sample two tokens share a time, in other rows and columns
        positions = positions[:, :, None].repeat(3, axis=2)
        positions[:, 2, 0] -= 1
        positions[1::2, 1:3, 1:] += random.integers(0, 3, (len(positions[1::2]), 2, 2)).astype(np.int32)
    weights = (random.random((rows, TOKENS)) < 0.7) * (segments > 0)
    fields = {
        "tokens": random.integers(0, v, (rows, TOKENS)).astype(np.int32),
        "segments": segments,
        "branches": branches,
        "positions": positions,
        "targets": random.integers(0, v, (rows, TOKENS)).astype(np.int32),
        "weights": (weights / max(1, weights.sum())).astype(np.float32),
    }
    if config.backbone.bidirectional != "none":
        fields["blocks"] = np.array([0, 1, 1, 0, 2, 2, 3, 3, 0, 4] + [0] * 2, np.int32)[None].repeat(rows, axis=0)
    if config.backbone.experts:
        real = segments > 0
        fields["balancing_weights"] = (real / max(1, real.sum())).astype(np.float32)
    for place, encoder in enumerate(config.encoders):
        index = np.full((rows, TOKENS), -1, np.int32)
        index[:, 1 + place] = encoder.prefix_slots if isinstance(encoder, VisionConfig) else 0
        index[::3, 4] = 1
        if config.backbone.newline and not place:
            index[:, 3] = NEWLINE
        fields[f"{encoder.name}_index"] = index
    for generator in config.generators:
        shape = (rows, IMAGES, generator.conditions)
        fields[f"{generator.name}_conditions"] = random.integers(0, TOKENS, shape).astype(np.int32)
    return fields


def _generator(config: UNetConfig | DiTConfig, rows: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    wanted = (np.arange(rows * IMAGES) % 3 > 0).reshape(rows, IMAGES)
    return {
        "images": random.uniform(-1, 1, (rows, IMAGES, *config.image_sides, config.channels)).astype(np.float32),
        "weights": (wanted / max(1, wanted.sum())).astype(np.float32),
        "samples": random.permutation(1000)[: rows * IMAGES].reshape(rows, IMAGES).astype(np.int32),
    }
