"""Attention over packed segments, at the cost of the segments rather than of the padded square.

What is well kept does the work: `jax.nn.dot_product_attention` for short rows and, through cuDNN, on GPUs; blocks in
plain XLA for all else. There is no kernel of our own: one is written only where a measurement on a GPU shows that it
pays, and none has been made.
"""

from pallas_kernels.packed_attention.api import IMPLEMENTATIONS, packed_attention, use_attention_implementation
from pallas_kernels.packed_attention.segment_mask import SegmentMask, make_segment_mask

__all__ = ["IMPLEMENTATIONS", "SegmentMask", "make_segment_mask", "packed_attention", "use_attention_implementation"]
