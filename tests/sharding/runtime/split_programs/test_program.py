"""A program in two parts computes the same as the whole, with the same arithmetic, and the early part only its own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from sharding.runtime.split_programs.program import SplitProgram, split_traced

LAYERS, WIDTH, INNER, ROWS = 3, 4, 8, 2


def operands():
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {
        "up": jax.random.normal(keys[0], (LAYERS, WIDTH, INNER)),
        "down": jax.random.normal(keys[1], (LAYERS, INNER, WIDTH)),
        "scale": 1 + jnp.arange(float(WIDTH))[None],
    }
    return weights, jax.random.normal(keys[2], (ROWS, WIDTH))


def layer(x, weights):
    return jnp.tanh(x @ weights["up"]) @ weights["down"] + x


def stack(weights, x, *, recompute=False, in_a_call=False):
    """A scale, and layers in a loop."""
    body = jax.checkpoint(layer) if recompute else layer
    body = jax.jit(body) if in_a_call else body
    layer_weights = {name: weights[name] for name in ("up", "down")}
    x = jnp.sin(x) * weights["scale"]
    return lax.scan(lambda x, weights_of_layer: (body(x, weights_of_layer), None), x, layer_weights, reverse=True)[0]


def chain(weights, x):
    """The same without a loop."""
    for number in range(LAYERS):
        x = layer(x, {name: weights[name][number] for name in ("up", "down")})
    return x * weights["scale"]


def shared(weights, x):
    """One layer several times, whose gradients a loop carries."""
    one = {name: weights[name][0] for name in ("up", "down")}
    return lax.scan(lambda x, _: (layer(x, one), jnp.sum(x)), x, None, length=LAYERS)[0]


def gradients(function, weights, x):
    """(gradient of x, gradients of weights)."""
    output, vjp = jax.vjp(function, weights, x)
    weight_gradients, x_gradient = vjp(jnp.cos(output))
    return x_gradient, weight_gradients


def split_gradients(function):
    """The gradient of x early, those of weights late; and the operands."""
    given = operands()
    traced = jax.jit(functools.partial(gradients, function)).trace(*given)
    return split_traced(traced, [True, *[False] * 3]), jax.tree.leaves(given)


FUNCTIONS = {
    "layers in a loop": stack,
    "layers in a loop, computed again": functools.partial(stack, recompute=True),
    "layers that are calls": functools.partial(stack, in_a_call=True),
    "layers written out": chain,
    "one layer several times": shared,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_both_parts_give_the_results_of_the_whole(function):
    split, given = split_gradients(function)
    x_gradient, weight_gradients = gradients(function, *operands())
    early = jax.jit(split.early)(given)
    late = jax.jit(split.late)(given, early.saved)
    assert [result is None for result in early.results] == [False, True, True, True]
    np.testing.assert_array_equal(early.results[0], x_gradient)
    assert late[0] is None
    for actual, expected in zip(late[1:], jax.tree.leaves(weight_gradients), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def dot_count(program, *arguments) -> int:
    """Matrix products that a program runs; those in a loop once for each step."""

    def count(jaxpr) -> int:
        total = 0
        for operation in jaxpr.eqns:
            inner = [getattr(value, "jaxpr", value) for value in operation.params.values()]
            steps = operation.params["length"] if operation.primitive.name == "scan" else 1
            total += operation.primitive.name == "dot_general"
            total += steps * sum(count(inner_program) for inner_program in inner if hasattr(inner_program, "eqns"))
        return total

    return count(jax.make_jaxpr(program)(*arguments).jaxpr)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_no_product_is_computed_twice_and_those_of_weights_are_late(function):
    split, given = split_gradients(function)
    saved = jax.eval_shape(split.early, given).saved
    late = dot_count(split.late, given, saved)
    assert late == 2 * LAYERS
    whole = dot_count(functools.partial(gradients, function), *operands())
    assert dot_count(split.early, given) + late == whole


def test_the_late_part_reads_what_the_early_one_does_not_save_from_the_operands():
    def program(x, y):
        z = jnp.sin(x)
        return z * 2.0, z + y.T, jnp.float32(3.0)

    x, y = jnp.ones((2, 3)), jnp.ones((3, 2))
    traced = jax.jit(program).trace(x, y)
    split = split_traced(traced, [True, False, False])
    assert (split.early_operands, split.late_operands) == ([True, False], [False, True])
    results, saved = split.early([x, None])
    assert [array.shape for array in saved] == [(2, 3)]
    np.testing.assert_array_equal(split.late([None, y], saved)[1], program(x, y)[1])
    assert results[0].shape == (2, 3)


def test_a_transpose_of_an_operand_is_repeated_instead_of_saved():
    def program(x, y):
        return x.T @ y, x.T * 2.0

    x = jnp.ones((2, 3))
    split = split_traced(jax.jit(program).trace(x, x), [True, False])
    _, saved = split.early([x, x])
    assert not saved
    np.testing.assert_array_equal(split.late([x, None], saved)[1], program(x, x)[1])


def test_a_barrier_holds_back_what_is_early_and_what_is_late_apart():
    def program(x, y):
        doubled, tripled = lax.optimization_barrier((x * 2.0, y * 3.0))
        return doubled + 1.0, tripled + 1.0

    x = jnp.ones(3)
    split = split_traced(jax.jit(program).trace(x, x), [True, False])
    assert (split.early_operands, split.late_operands) == ([True, False], [False, True])
    assert not split.early([x, None]).saved
    np.testing.assert_array_equal(split.late([None, x], [])[1], program(x, x)[1])
    assert "optimization_barrier" in str(jax.make_jaxpr(lambda y: split.late([None, y], [])[1])(x))


def test_operations_with_side_effects_are_early():
    said: list[float] = []

    def program(x, y):
        jax.debug.callback(lambda y: said.append(float(y)), y[0])
        return x * 2.0, y * 2.0

    x = jnp.ones(3)
    split = split_traced(jax.jit(program).trace(x, x), [True, False])
    assert split.early_operands == [True, True]
    split.early([x, x])
    jax.effects_barrier()
    assert said == [1.0]


def test_a_result_may_be_wanted_early_and_be_used_late_and_may_be_an_operand_or_a_number():
    def program(x, y):
        z = jnp.sin(x)
        return z, z + y, y, 3.0, x

    x, y = jnp.ones(3), jnp.zeros(3)
    split = split_traced(jax.jit(program).trace(x, y), [True, False, False, False, True])
    results, saved = split.early([x, y])
    late = split.late([None, y], saved)
    np.testing.assert_array_equal(results[4], x)
    for actual, expected in zip(late[1:4], program(x, y)[1:4], strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_operands_may_vary_over_more_mesh_axes_than_when_it_was_traced():
    """What a pipeline keeps in slots differs between ranks, even if it was the same on all when it was traced."""
    mesh = jax.make_mesh((2,), ("stage",), axis_types=(jax.sharding.AxisType.Auto,))
    traces: list[SplitProgram] = []

    def trace(x):
        traces.append(split_traced(jax.jit(lambda x, y: (x * y, jnp.where(x > 0, x, y))).trace(x, x), [True, False]))
        return x

    jax.eval_shape(jax.shard_map(trace, mesh=mesh, in_specs=P(), out_specs=P()), jnp.ones(4))
    (split,) = traces

    def run(x, y):
        (product, _), saved = split.early([x, y])
        return product, split.late([x, y], saved)[1]

    x = jnp.arange(-2.0, 2.0)
    run = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(P(), P("stage")), out_specs=P("stage")))
    product, chosen = run(x, jnp.arange(8.0))
    np.testing.assert_array_equal(product, np.tile(x, 2) * np.arange(8.0))
    np.testing.assert_array_equal(chosen, np.where(np.tile(x, 2) > 0, np.tile(x, 2), np.arange(8.0)))
