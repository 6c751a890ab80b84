"""Encoders and backbones as layers, from the dataclasses that their Flax modules are built from."""

from configs.architectures import AudioConfig, BackboneConfig, ModelConfig, VisionConfig
from sharding.layer_spec import Amount, Kept, Kernel, LayerSpec, gather, matmul, memory, scatter


def encoder_layers(
    config: VisionConfig | AudioConfig, backbone: BackboneConfig
) -> tuple[tuple[LayerSpec, ...], LayerSpec, tuple[LayerSpec, ...]]:
    """What comes before an encoder's stack, one layer of the stack, and what comes after: norm and projector."""
    block = _block(
        config.name,
        config.width,
        config.width,
        config.ffn,
        gated=False,
        causal=False,
        biases=(6 * config.width, config.width * 3 + config.ffn),
    )
    return (_EMBEDDINGS[type(config)](config),), block, (_norm(config), _projector(config, backbone))


def backbone_layers(config: ModelConfig) -> tuple[tuple[LayerSpec, ...], LayerSpec, tuple[LayerSpec, ...]]:
    """The embedding, one layer of the stack, and the last norm with the language head."""
    of = config.backbone
    narrow = of.head_width * of.kv_heads
    biases = (2 * of.width, 0) if of.gated else (3 * of.width, of.ffn)
    block = _block(of.name, of.width, narrow, of.ffn, gated=of.gated, causal=True, biases=biases)
    return (_embedding(of),), block, (_head(of),)


def _block(
    part: str, width: int, narrow: int, ffn: int, *, gated: bool, causal: bool, biases: tuple[int, int]
) -> LayerSpec:
    """Attention and MLP, each behind a norm.

    Args:
        part: Name of its part.
        width, narrow, ffn: Widths of the model, of all keys (and of all values), and of the MLP.
        gated: Whether the MLP has a gate.
        causal: Whether a position sees only what stands before it: half of the squares.
        biases: Numbers in vectors that each rank holds, and that ranks divide.
    """
    wide = width + 2 * narrow
    up = (1 + gated) * ffn
    kernels = (
        memory("attention_norm", 2 * width, split=False),
        gather(width),
        matmul("query_key_value", width, wide),
        Kernel(
            "attention",
            "attention",
            Amount(squares=4 * width * (0.5 if causal else 1.0)),
            Amount(2 * width + 2 * narrow),
            ring=Amount(2 * narrow),
        ),
        matmul("output", width, width),
        scatter(width),
        memory("mlp_norm", 2 * width, split=False),
        gather(width),
        matmul("up", width, up),
        memory("activation", up + ffn),
        matmul("down", ffn, width),
        scatter(width),
    )
    whole_vectors, split_vectors = biases
    # Inputs of the norms and of the matmuls; attention keeps its inputs and output (and computes scores again).
    kept = {
        "none": Kept(Amount(wide + width + up + ffn), Amount(4 * width)),
        "selective": Kept(Amount(wide + up), Amount(3 * width)),
        "full": Kept(whole=Amount(width)),
    }
    return LayerSpec(
        "blocks",
        part,
        kernels,
        width * (wide + width + up + ffn) + split_vectors,
        whole_vectors,
        kept,
        Amount(width),
    )


def _same(kept: Kept, inputs: Kept) -> dict[str, Kept]:
    return {"none": kept, "selective": kept, "full": inputs}


def _patch_embedding(config: VisionConfig) -> LayerSpec:
    pixels, width = config.patch_width, config.width
    inputs = Kept(whole=Amount(pixels))
    return LayerSpec(
        "embed",
        config.name,
        (matmul("pixels", pixels, width, split=False), memory("positions", 2 * width, split=False)),
        0,
        pixels * width + width,
        _same(inputs, inputs),
        Amount(width),
    )


def _frame_embedding(config: AudioConfig) -> LayerSpec:
    """Two convolutions over three frames; two frames are one position."""
    mels, width = config.mels, config.width
    kernels = (
        Kernel("first", "convolution", Amount(2 * 2 * 3 * mels * width), Amount(2 * (mels + width)), 3 * mels * width),
        Kernel("second", "convolution", Amount(2 * 3 * width * width), Amount(3 * width), 3 * width * width),
        memory("positions", 2 * width, split=False),
    )
    inputs = Kept(whole=Amount(2 * mels))
    kept = Kept(Amount(4 * width), Amount(2 * mels + width))
    parameters = 3 * width * (mels + width) + width
    return LayerSpec("embed", config.name, kernels, parameters, width, _same(kept, inputs), Amount(width))


_EMBEDDINGS = {VisionConfig: _patch_embedding, AudioConfig: _frame_embedding}


def _norm(config: VisionConfig | AudioConfig) -> LayerSpec:
    width = config.width
    inputs = Kept(whole=Amount(width))
    kernels = (memory("norm", 2 * width, split=False),)
    return LayerSpec("norm", config.name, kernels, 0, 2 * width, _same(inputs, inputs), Amount(width))


def _projector(config: VisionConfig | AudioConfig, backbone: BackboneConfig) -> LayerSpec:
    share, merged, out = 1 / config.merged, config.merged * config.width, backbone.width
    kernels = (
        gather(config.width),
        matmul("up", merged, out, share),
        memory("activation", 2 * out * share),
        matmul("down", out, out, share),
        scatter(out * share),
    )
    inputs = Kept(whole=Amount(config.width))
    kept = Kept(Amount(2 * out * share), Amount(config.width))
    parameters = merged * out + out + out * out
    return LayerSpec(
        "projector", f"{config.name}_projector", kernels, parameters, out, _same(kept, inputs), Amount(out * share)
    )


def _embedding(config: BackboneConfig) -> LayerSpec:
    width = config.width
    kernels = (memory("lookup", 2 * width), scatter(width))
    nothing = Kept()
    return LayerSpec(
        "embed", config.name, kernels, config.vocabulary * width, 0, _same(nothing, nothing), Amount(width)
    )


def _head(config: BackboneConfig) -> LayerSpec:
    """The last norm, the logits in float32 and their loss; with tied embeddings the table counts where it is owned."""
    width, vocabulary = config.width, config.vocabulary
    kernels = (
        memory("norm", 2 * width, split=False),
        gather(width),
        matmul("logits", width, vocabulary),
        memory("loss", 4 * vocabulary),
    )
    inputs = Kept(whole=Amount(width))
    kept = Kept(Amount(2 * vocabulary), Amount(2 * width))
    parameters = 0 if config.tie_embeddings else vocabulary * width
    # What leaves for the generators are single positions: nothing beside the activations.
    return LayerSpec("head", config.name, kernels, parameters, width, _same(kept, inputs), Amount())
