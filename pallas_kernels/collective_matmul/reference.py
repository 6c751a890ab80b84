"""The XLA form: a plain contraction, and a sum over the tensor axes where the contracted dimension is split."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

SPLITS = (None, "columns", "rows")


def split_matmul(
    x: jax.Array,
    w: jax.Array,
    *,
    split: str | None,
    axes: tuple[str, ...],
    contract: Callable[[jax.Array, jax.Array], jax.Array] = jnp.matmul,
) -> jax.Array:
    """Contracts x with a weight split over mesh axes; runs inside `jax.shard_map` (or anywhere when `axes` is empty).

    Args:
        x: Activations `[..., d]`; for `rows` its last dimension is split like the weight's rows.
        w: This device's part of the weight `[d, f]`.
        split: `columns`: w holds some output columns, the result stays split. `rows`: w holds some input rows, the
            partial results are summed over `axes`. None: the weight is whole everywhere.
        axes: Mesh axis names of tensor parallelism, empty outside of a mesh.
        contract: What to compute with x and w: a matmul, or a convolution over channels.

    Returns:
        `[..., f]`, split over `axes` for `columns`, equal on all of them otherwise.

    Raises:
        ValueError: Unknown `split`.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; choose one of {SPLITS}")
    y = contract(x, w)
    return lax.psum(y, axes) if split == "rows" and axes else y
