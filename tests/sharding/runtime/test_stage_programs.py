"""Programs of one stage on data x tensor submeshes against plain differentiation on one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.runtime.meshes import STAGE_AXES, submesh
from sharding.runtime.stage_programs import Microbatches, StageDefinition, StagePrograms

LAYERS, WIDTH, HIDDEN, MICROBATCHES = 3, 4, 8, 2
SHAPES = {
    "m/enter": {"kernel": (WIDTH, WIDTH)},
    "m/blocks": {"up": (LAYERS, WIDTH, HIDDEN), "down": (LAYERS, HIDDEN, WIDTH), "scale": (LAYERS, WIDTH)},
    "m/expert": {"bias": (WIDTH, 2)},
}
SPLITS = {
    "m/enter": {"kernel": P(None, None)},
    "m/blocks": {"up": P(None, None, "tensor"), "down": P(None, "tensor", None), "scale": P(None, None)},
    "m/expert": {"bias": P("expert", None)},
}


def apply(parameters, inputs, batch, axes, around=lambda layer: layer):
    """Two channels in, a stack of layers whose hidden width is split over tensor, one channel and two losses out.

    Every expert rank adds its own entries to all rows of its expert group.
    """
    x = inputs["a"] @ parameters["m/enter"]["kernel"] + inputs["b"]

    def layer(x, weights):
        y = jnp.tanh(x @ weights["up"]) @ weights["down"]
        y = lax.psum(y, axes.tensor) if axes.tensor else y
        return x + y * weights["scale"][None, :], None

    x, _ = lax.scan(around(layer), x, parameters["m/blocks"])
    bias = jnp.sum(jnp.square(parameters["m/expert"]["bias"]), axis=-1)
    bias = lax.all_gather(bias, axes.expert, tiled=True) if axes.expert else bias
    x = x + bias[None, :]
    losses = {"m": jnp.sum(batch["m"]["weights"] * jnp.mean(jnp.square(x), axis=-1)), "m/other": jnp.sum(x)}
    return {"out": x}, losses, {"last": x[:, 0]}


def stage(dp, tp, *, ep=1, rows=4, hidden=HIDDEN, trained=tuple(SHAPES), wanted="ab", backward=True, around=None):
    shapes = {
        key: {
            name: jax.ShapeDtypeStruct(tuple(hidden if n == HIDDEN else n for n in shape), jnp.float32)
            for name, shape in tree.items()
        }
        for key, tree in SHAPES.items()
    }
    body = StageDefinition(
        ("u", 0),
        functools.partial(apply, around=around) if around else apply,
        SPLITS,
        shapes,
        frozenset(trained),
        {"m": ("weights",)},
        ("a", "b"),
        ("out",),
    )
    x = jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32)
    weights = jax.ShapeDtypeStruct((MICROBATCHES, rows), jnp.float32)
    batch = Microbatches({"m": {"weights": weights}}, jax.ShapeDtypeStruct((2,), jnp.int32))
    mesh = submesh(jax.devices()[: dp * tp], dp, tp, ep)
    return StagePrograms(body, mesh, STAGE_AXES, {"a": x, "b": x}, batch, frozenset(wanted), backward)


def operands(programs, rows=4):
    """Parameters, inputs of every microbatch, batch, gradients that arrive at the output; on the host and placed."""
    random = np.random.default_rng(0)

    def draw(*shape):
        return random.normal(size=shape).astype(np.float32)

    def put(tree, specs):
        shardings = jax.tree.map(lambda s: NamedSharding(programs.mesh, s), specs, is_leaf=lambda s: isinstance(s, P))
        return jax.device_put(tree, shardings)

    parameters = {key: {name: draw(*shape) for name, shape in tree.items()} for key, tree in SHAPES.items()}
    inputs = [{name: draw(rows, WIDTH) for name in "ab"} for _ in range(MICROBATCHES)]
    seeds = [{"out": draw(rows, WIDTH)} for _ in range(MICROBATCHES)]
    weights = draw(MICROBATCHES, rows)
    host = (parameters, inputs, weights, seeds)
    batch = Microbatches(
        {"m": {"weights": put(weights, P(None, STAGE_AXES.data))}}, put(np.array([0, 0], np.int32), P())
    )
    by_rows = [put(each, dict.fromkeys(each, P(STAGE_AXES.data))) for each in (*inputs, *seeds)]
    return host, (put(parameters, SPLITS), by_rows[:MICROBATCHES], batch, by_rows[MICROBATCHES:])


def run(programs, placed):
    """Both microbatches forward, then backward: outputs, losses, gradients of the inputs, accumulated gradients."""
    parameters, inputs, batch, seeds = placed
    losses, gradients, residuals, outputs, wanted = programs.zero_losses(), programs.zero_gradients(), [], [], []
    for number in range(MICROBATCHES):
        out, kept, losses = programs.forward(parameters, inputs[number], batch, np.int32(number), losses)
        outputs.append(out)
        residuals.append(kept)
    for number in range(MICROBATCHES):
        more, gradients = programs.backward(
            parameters, inputs[number], batch, np.int32(number), residuals[number], seeds[number], gradients
        )
        wanted.append(more)
    return outputs, losses, wanted, gradients


def reference(host):
    parameters, inputs, weights, seeds = host

    def total(parameters, inputs):
        losses = {"m": jnp.zeros(()), "m/other": jnp.zeros(())}
        seeded = jnp.zeros(())
        for number in range(MICROBATCHES):
            batch = {"m": {"weights": jnp.asarray(weights[number])}}
            outputs, more, _ = apply(parameters, inputs[number], batch, type(STAGE_AXES)())
            losses = jax.tree.map(jnp.add, losses, more)
            seeded += jnp.sum(outputs["out"] * seeds[number]["out"])
        return losses["m"] + losses["m/other"] + seeded, losses

    (_, losses), gradients = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(parameters, inputs)
    return losses, gradients


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * (1e-3 + np.max(np.abs(other))))


RECOMPUTE = {
    "none": None,
    "selective": functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
    "full": functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable),
}


@pytest.mark.parametrize(
    ("dp", "tp", "ep", "recompute"),
    [(1, 1, 1, "none"), (2, 2, 1, "none"), (2, 2, 2, "selective"), (4, 1, 2, "full"), (4, 1, 4, "none")],
)
def test_losses_and_gradients_are_those_of_one_device(dp, tp, ep, recompute):
    programs = stage(dp, tp, ep=ep, around=RECOMPUTE[recompute])
    host, placed = operands(programs)
    _, losses, wanted, gradients = run(programs, placed)
    expected_losses, (expected, expected_wanted) = reference(host)
    assert programs.loss_names == ("m", "m/other")
    for name, loss in losses.items():
        assert loss.shape == (dp,)
        close(jnp.sum(loss), expected_losses[name])
    assert {leaf.shape[0] for key in ("m/enter", "m/blocks") for leaf in jax.tree.leaves(gradients[key])} == {dp}
    assert gradients["m/expert"]["bias"].shape[0] == dp // ep  # one copy for each device that holds the same experts
    jax.tree.map(lambda got, of: close(np.sum(got, axis=0), of), gradients, expected)
    jax.tree.map(close, wanted, expected_wanted)


def test_frozen_parameters_and_unwanted_inputs_get_no_gradient():
    programs = stage(2, 2, trained=("m/enter",), wanted="b")
    host, placed = operands(programs)
    _, _, wanted, gradients = run(programs, placed)
    _, (expected, expected_wanted) = reference(host)
    assert set(gradients) == {"m/enter"}
    close(np.sum(gradients["m/enter"]["kernel"], axis=0), expected["m/enter"]["kernel"])
    for got, of in zip(wanted, expected_wanted, strict=True):
        assert set(got) == {"b"}
        close(got["b"], of["b"])


def test_a_stage_without_a_backward_keeps_nothing_and_adds_its_loss_up():
    programs = stage(2, 1, trained=(), wanted="", backward=False)
    host, (parameters, inputs, batch, _) = operands(programs)
    losses = programs.zero_losses()
    for number in range(MICROBATCHES):
        _, residuals, losses = programs.forward(parameters, inputs[number], batch, np.int32(number), losses)
        assert residuals == []
    jax.tree.map(lambda got, of: close(jnp.sum(got), of), losses, reference(host)[0])
    assert programs.backward is None


def test_evaluation_gives_the_outputs_and_judged_arrays_of_the_forward():
    programs = stage(2, 2)
    _, (parameters, inputs, batch, seeds) = operands(programs)
    outputs, losses, _, _ = run(programs, (parameters, inputs, batch, seeds))
    total = jnp.zeros(())
    for number in range(MICROBATCHES):
        out, more, judged = programs.evaluate(parameters, inputs[number], batch, np.int32(number))
        close(out["out"], outputs[number]["out"])
        np.testing.assert_array_equal(judged["last"], out["out"][:, 0])
        total += jnp.sum(more["m"])
    close(total, jnp.sum(losses["m"]))


def test_accumulators_are_donated():
    programs = stage(2, 2)
    _, (parameters, inputs, batch, seeds) = operands(programs)
    losses, gradients = programs.zero_losses(), programs.zero_gradients()
    _, residuals, _ = programs.forward(parameters, inputs[0], batch, np.int32(0), losses)
    programs.backward(parameters, inputs[0], batch, np.int32(0), residuals, seeds[0], gradients)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((losses, gradients)))


def residual_bytes(rows, hidden, **options):
    """Bytes of all residuals of one microbatch over all devices, without running anything."""
    programs = stage(2, 2, rows=rows, hidden=hidden, **options)
    _, residuals, _ = jax.eval_shape(programs.forward, *programs._abstract, jax.eval_shape(programs.zero_losses))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in residuals)


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("trained", [("m/enter", "m/blocks"), ("m/enter",)])
def test_residuals_carry_no_weights(recompute, trained):
    """All of them grow with the rows: a copy of a weight, trained or frozen, would be a part that does not."""
    options = {"around": RECOMPUTE[recompute], "trained": trained}
    small, large = (residual_bytes(rows, 64, **options) for rows in (4, 8))
    # What does not grow: numbers such as a mean's divisor, and a vector that a product spreads over the rows, which is
    # as much as one row of activations, on two data ranks each. The smallest matrix would be more.
    constant = 2 * small - large
    assert 0 <= constant <= 2 * 4 * (1 + LAYERS * WIDTH) < 2 * 4 * WIDTH * WIDTH
    # Nor do they hold more than the activations: per layer x and its sum, and tanh with its derivative.
    assert 0 < (small - constant) / 4 / 4 <= LAYERS * (3 * 64 + 3 * WIDTH) + 3 * WIDTH
