"""Attention over packed segments, at the cost of the segments rather than of the padded square.

The work is done by well-maintained code: `jax.nn.dot_product_attention` for short rows and, through cuDNN, on GPUs;
blocks in plain XLA for everything else. Where ranks divide the positions of a row, keys and values go around them
(`ring_mask`), or each takes some heads of all positions (`head_exchange`). There is no kernel of our own: one would be
written only where a measurement on a GPU shows that it pays, and none has been made.
"""

from pallas_kernels.packed_attention.api import (
    IMPLEMENTATIONS,
    full_attention,
    packed_attention,
    use_attention_implementation,
    use_attention_of_gpus,
)
from pallas_kernels.packed_attention.head_exchange import HeadExchangeMask
from pallas_kernels.packed_attention.ring_mask import RingMask, make_ring_mask
from pallas_kernels.packed_attention.segment_mask import SegmentMask, make_segment_mask

__all__ = [
    "IMPLEMENTATIONS",
    "HeadExchangeMask",
    "RingMask",
    "SegmentMask",
    "full_attention",
    "make_ring_mask",
    "make_segment_mask",
    "packed_attention",
    "use_attention_implementation",
    "use_attention_of_gpus",
]
