"""The language loss with its gradients: over chunks of the vocabulary, and of whole logits."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.parts import PartRun, short_reason
from benchmarks.timing import TimedRun, in_turns, medians, timed_jax
from mmjax.models.layers.chunked_logits import chunked_logits
from sharding.axes import Axes


def rows(part: PartRun) -> Iterator[dict[str, Any]]:
    """Milliseconds and temporary memory of both forms."""
    positions, width, vocabulary = part.sizes.loss
    random = np.random.default_rng(0)
    hidden = jnp.asarray(random.standard_normal((1, positions, width), np.float32), part.sizes.model.dtype)
    table = jnp.asarray(random.standard_normal((vocabulary, width), np.float32) * 0.02, part.sizes.model.dtype)
    operands = hidden, table, jnp.asarray(random.integers(0, vocabulary, (1, positions)), jnp.int32)
    runs: dict[str, TimedRun] = {}
    for form, loss in {"in chunks": loss_in_chunks, "whole logits": loss_of_whole_logits}.items():
        name = f"loss, {positions} x {vocabulary}, {form}"
        try:
            compiled = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*operands).compile()
            jax.block_until_ready(compiled(*operands))
        except Exception as error:  # whole logits may not fit
            yield part.row(name, None, note=f"not run: {short_reason(error)}")
            continue
        runs[form] = timed_jax(compiled, operands)
        yield part.row(f"{name}, GB of temporaries", compiled.memory_analysis().temp_size_in_bytes / 1e9)
    for form, median in medians(in_turns(runs, part.sizes.rounds, 1, lambda: part.seconds_left - 2)).items():
        yield part.row(f"loss, {positions} x {vocabulary}, {form}, ms", median * 1e3)


def loss_in_chunks(hidden: jax.Array, table: jax.Array, targets: jax.Array) -> jax.Array:
    """The sum of the cross-entropies, of logits that are computed chunk by chunk and once more for the gradients."""
    sums = chunked_logits(hidden, table, len(table), Axes()).sums(targets)
    return jnp.sum(jnp.log(sums.exp_sum) + sums.largest - sums.target_logits)


def loss_of_whole_logits(hidden: jax.Array, table: jax.Array, targets: jax.Array) -> jax.Array:
    """The sum of the cross-entropies, of float32 logits that are kept for the gradients."""
    logits = jnp.einsum("rsd,vd->rsv", hidden, table, preferred_element_type=jnp.float32)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - target_logits)
