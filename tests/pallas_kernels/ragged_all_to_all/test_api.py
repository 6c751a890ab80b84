"""The ragged all-to-all: every implementation and its gradients against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pallas_kernels.ragged_all_to_all import IMPLEMENTATIONS, ragged_all_to_all

RANKS, ROWS, WIDTH = 4, 6, 3
RUNS_HERE = ("padded", "gather")
RANDOM = np.random.default_rng(0)
SIZES = {
    "uneven": np.array([[2, 0, 3, 1], [0, 0, 0, 6], [1, 1, 1, 1], [0, 5, 0, 0]], np.int32),
    "nothing": np.zeros((4, 4), np.int32),
    "all to one": np.array([[0, 6, 0, 0], [0, 6, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]], np.int32),
    "everything stays": np.diag([6, 3, 0, 1]).astype(np.int32),
}


def mesh():
    return jax.sharding.Mesh(np.array(jax.devices()[: 2 * RANKS]).reshape(2, RANKS), ("other", "ranks"))


@functools.cache
def program(implementation: str, rows: int, width: tuple[int, ...] = (WIDTH,)):
    def local(x, sent):
        return ragged_all_to_all(x[0, 0], sent[0, 0], rows=rows, axis="ranks", implementation=implementation)[
            None, None
        ]

    spec = P("other", "ranks")
    return jax.jit(jax.shard_map(local, mesh=mesh(), in_specs=(spec, spec), out_specs=spec))


def expected(x: np.ndarray, sizes: np.ndarray, rows: int) -> np.ndarray:
    received = np.zeros((RANKS, rows, *x.shape[2:]), x.dtype)
    starts = np.cumsum(sizes, axis=1) - sizes
    for target in range(RANKS):
        blocks = [x[s, starts[s, target] : starts[s, target] + sizes[s, target]] for s in range(RANKS)]
        arrived = np.concatenate(blocks)
        received[target, : len(arrived)] = arrived
    return received


@pytest.mark.parametrize("implementation", RUNS_HERE)
@pytest.mark.parametrize("kind", SIZES)
def test_rows_are_received_ordered_by_source_with_zeros_behind(kind, implementation):
    rows = int(SIZES[kind].sum(axis=0).max()) + 2
    x = RANDOM.normal(size=(2, RANKS, ROWS, WIDTH)).astype(np.float32)
    sent = np.stack([SIZES[kind], SIZES[kind]])
    actual = np.asarray(program(implementation, rows)(x, sent))
    for group in range(2):
        np.testing.assert_array_equal(actual[group], expected(x[group], SIZES[kind], rows))


@pytest.mark.parametrize("implementation", RUNS_HERE)
def test_the_gradient_returns_every_row_to_its_source(implementation):
    sent = np.stack([SIZES["uneven"], SIZES["all to one"]])
    rows = 15
    x = RANDOM.normal(size=(2, RANKS, ROWS, WIDTH)).astype(np.float32)
    weights = RANDOM.normal(size=(2, RANKS, rows, WIDTH)).astype(np.float32)

    def loss(x):
        return jnp.sum(program(implementation, rows)(x, sent) * weights)

    gradient = np.asarray(jax.grad(loss)(jnp.asarray(x)))
    for group in range(2):
        back = expected(weights[group], sent[group].T, ROWS)
        np.testing.assert_array_equal(gradient[group], back)


def test_implementations_agree_on_rows_of_any_shape_and_type():
    x = RANDOM.normal(size=(2, RANKS, ROWS, 2, 2)).astype(jnp.bfloat16)
    sent = np.stack([SIZES["uneven"]] * 2)
    one, other = (np.asarray(program(name, 10, (2, 2))(x, sent)) for name in RUNS_HERE)
    assert one.dtype == jnp.bfloat16
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_implementation_is_lowered_for_gpus_with_its_gradient(implementation):
    def loss(x, sent):
        return jnp.sum(jnp.square(program(implementation, 10)(x, sent)))

    x = jax.ShapeDtypeStruct((2, RANKS, ROWS, WIDTH), jnp.float32)
    sent = jax.ShapeDtypeStruct((2, RANKS, RANKS), jnp.int32)
    text = jax.jit(jax.grad(loss)).trace(x, sent).lower(lowering_platforms=("cuda",)).as_text()
    collective = {"ragged": "ragged_all_to_all", "padded": "all_to_all", "gather": "all_gather"}[implementation]
    assert text.count(collective) >= 2, "one on the way, one back"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axis": "rank"}, "no mesh axis 'rank' here; the axes are other, ranks"),
        ({"implementation": "magic"}, "implementation is 'magic'; choose one of ragged, padded, gather"),
        ({"rows": 0}, "rows is 0"),
        ({"sent": 3}, r"send_sizes is int32\[3\]; the axis 'ranks' needs one whole number for each of 4"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_when_traced(options, message):
    sent = jnp.zeros(options.pop("sent", RANKS), jnp.int32)
    given = {"rows": 4, "axis": "ranks", **options}
    local = functools.partial(ragged_all_to_all, send_sizes=sent, **given)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(
            jax.shard_map(lambda x: local(x), mesh=mesh(), in_specs=P("ranks"), out_specs=P("ranks")),
            jax.ShapeDtypeStruct((RANKS * ROWS, WIDTH), jnp.float32),
        )
