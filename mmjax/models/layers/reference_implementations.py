"""The implementations that compute what the definitions say, against which others are compared."""

import contextlib
from collections.abc import Iterator

from pallas_kernels.grouped_matmul import use_grouped_matmul_implementation
from pallas_kernels.packed_attention import use_attention_implementation


@contextlib.contextmanager
def use_reference_implementations() -> Iterator[None]:
    """Makes all that is traced inside compute dense attention, and the grouped matmuls of `lax.ragged_dot`.

    Verification compares layouts with them. FLOPs are counted of them, because the arithmetic of both is known from
    their shapes, where other implementations add padding or leave out blocks that do not overlap.
    """
    with use_attention_implementation("dense"), use_grouped_matmul_implementation("ragged_dot"):
        yield
