"""A transformer block as a layer: attention and a feed-forward layer, each behind a norm."""

from configs.transformer import TransformerConfig
from sharding.layer_spec import Amount, Kept, Kernel, LayerSpec, gather, matmul, memory, scatter


def norm_size(config: TransformerConfig, width: int) -> int:
    """Numbers in a norm's parameters."""
    return width * (1 + (config.norm == "layernorm" and config.norm_bias))


def block_layer(config: TransformerConfig, *, causal: bool) -> LayerSpec:
    """One block; `causal`: a position sees only what stands before it, half of the squares."""
    width, narrow, ffn = config.width, config.kv_width, config.ffn
    wide = width + 2 * narrow
    up = (1 + config.gated) * ffn
    attention, mlp = _inner_norms(config)
    kernels = (
        memory("attention_norm", 2 * width, split=False),
        gather(width),
        matmul("query_key_value", width, wide),
        *_qk_norm(config),
        Kernel(
            "attention",
            "attention",
            Amount(squares=4 * width * (0.5 if causal else 1.0)),
            Amount(2 * width + 2 * narrow),
            ring=Amount(2 * narrow),
        ),
        *attention,
        matmul("output", width, width),
        scatter(width),
        *(() if config.parallel else (memory("mlp_norm", 2 * width, split=False), gather(width))),
        matmul("up", width, up),
        memory("activation", up + ffn),
        *mlp,
        matmul("down", ffn, width),
        scatter(width),
    )
    # Inputs of the norms and of the matmuls; attention keeps its inputs and output (and computes scores again).
    normed = (width + narrow) * (config.qk_norm != "none") + width * len(attention) + ffn * len(mlp)
    norms = 1 if config.parallel else 2
    kept = {
        "none": Kept(Amount(wide + width + up + ffn + normed), Amount(2 * norms * width)),
        "selective": Kept(Amount(wide + up), Amount((1 + norms) * width)),
        "full": Kept(whole=Amount(width)),
    }
    whole, split = _vectors(config)
    parameters = width * (wide + width + up + ffn) + split
    return LayerSpec("blocks", config.name, kernels, parameters, whole, kept, Amount(width))


def _qk_norm(config: TransformerConfig) -> tuple[Kernel, ...]:
    return () if config.qk_norm == "none" else (memory("query_key_norm", 2 * (config.width + config.kv_width)),)


def _inner_norms(config: TransformerConfig) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Of attention, and of the feed-forward layer."""
    widths = {"attention": config.width, "mlp": config.ffn}
    found = (
        (memory(f"{place}_inner_norm", 2 * width),) if place in config.inner_norms else ()
        for place, width in widths.items()
    )
    attention, mlp = found
    return attention, mlp


def _vectors(config: TransformerConfig) -> tuple[int, int]:
    """Numbers in the vectors that each tensor rank holds, and in those that ranks divide."""
    width, narrow, up = config.width, config.kv_width, (1 + config.gated) * config.ffn
    whole = norm_size(config, width) * (1 if config.parallel else 2)
    whole += width * (("output" in config.biases) + ("mlp" in config.biases) + 2 * (config.layer_scale != 0))
    sizes = {"query": width, "key": narrow, "value": narrow, "mlp": up}
    split = sum(size for name, size in sizes.items() if name in config.biases)
    if config.qk_norm == "head":
        whole += 2 * norm_size(config, config.head_width)
    if config.qk_norm == "width":
        split += norm_size(config, width + narrow)
    inner = {"attention": width, "mlp": config.ffn}
    return whole, split + sum(norm_size(config, inner[place]) for place in config.inner_norms)
