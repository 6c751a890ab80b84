"""FLOPs of a language model as the counters of verl, lmms-engine and VeOmni (2025) count them, for their MFU."""

from collections.abc import Iterable

from configs.modules.backbone import BackboneConfig


def counted_flops(model: BackboneConfig, lengths: Iterable[float]) -> float:
    """FLOPs of forward and backward: 6 (N + 2 v d) tokens + 12 l d * sum of squared lengths.

    Unlike our MFU it counts a multiplication for the embedding, the squares of causal attention whole, and nothing of
    encoders. N are the weights of the layers' matmuls.

    Args:
        model: The language model.
        lengths: Tokens of each sample, which attend to their own sample.
    """
    head_width = model.width // model.heads
    attention = model.width * 2 * (model.heads + model.kv_heads) * head_width
    weights = model.depth * (attention + 3 * model.width * model.ffn) + 2 * model.vocabulary * model.width
    lengths = tuple(lengths)
    squares = sum(length**2 for length in lengths)
    return 6 * weights * sum(lengths) + 12 * model.depth * model.heads * head_width * squares
