"""Programs of one stage on data x tensor submeshes against plain differentiation on one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.axes import Axes
from sharding.plans.resolved.stage_axes import STAGE_AXES
from sharding.runtime.stages.definition import Microbatches, StageDefinition
from sharding.runtime.stages.named_programs import program_name
from sharding.runtime.stages.programs import StagePrograms
from tests.sharding.runtime.submeshes import stage_mesh
from tests.tiers import first_in_default

pytestmark = pytest.mark.usefixtures("compiled_as_users_do")

LAYERS, WIDTH, HIDDEN, MICROBATCHES = 3, 4, 8, 2
SHAPES = {
    "m/enter": {"kernel": (WIDTH, WIDTH)},
    "m/blocks": {"up": (LAYERS, WIDTH, HIDDEN), "down": (LAYERS, HIDDEN, WIDTH), "scale": (LAYERS, WIDTH)},
    "m/expert": {"bias": (WIDTH, 2)},
}
SPECS = {
    "m/enter": {"kernel": P(None, None)},
    "m/blocks": {"up": P(None, None, "tensor"), "down": P(None, "tensor", None), "scale": P(None, None)},
    "m/expert": {"bias": P("expert", None)},
}


def apply(parameters, inputs, batch, axes, remat=lambda layer: layer):
    """Two channels in, a stack of layers whose hidden width is split over tensor, one channel and two losses out.

    Every expert rank adds its own entries to all rows of its expert group.
    """
    axes = axes["m"]
    x = inputs["a"] @ parameters["m/enter"]["kernel"] + inputs["b"]

    def layer(x, weights):
        y = jnp.tanh(x @ weights["up"]) @ weights["down"]
        y = lax.psum(y, axes.tensor) if axes.tensor else y
        return x + y * weights["scale"][None, :], None

    x, _ = lax.scan(remat(layer), x, parameters["m/blocks"])
    bias = jnp.sum(jnp.square(parameters["m/expert"]["bias"]), axis=-1)
    bias = lax.all_gather(bias, axes.expert, tiled=True) if axes.expert else bias
    x = x + bias[None, :]
    losses = {"m": jnp.sum(batch["m"]["weights"] * jnp.mean(jnp.square(x), axis=-1)), "m/other": jnp.sum(x)}
    return {"out": x}, losses, {"m/last": x[:, 0]}


def stage(
    dp, tp, *, ep=1, rows=4, hidden=HIDDEN, trained=tuple(SHAPES), differentiated="ab", backward=True, remat=None
):
    shapes = {
        key: {
            name: jax.ShapeDtypeStruct(tuple(hidden if size == HIDDEN else size for size in shape), jnp.float32)
            for name, shape in tree.items()
        }
        for key, tree in SHAPES.items()
    }
    definition = StageDefinition(
        stage_id=("u", 0),
        apply=functools.partial(apply, remat=remat) if remat else apply,
        partition_specs=SPECS,
        shapes=shapes,
        trained_keys=frozenset(trained),
        batch_arrays={"m": ("weights",)},
        input_channels={"a": "m", "b": "m"},
        output_channels={"out": "m"},
    )
    x = jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32)
    weights = jax.ShapeDtypeStruct((MICROBATCHES, rows), jnp.float32)
    return StagePrograms(
        definition,
        mesh=stage_mesh(jax.devices()[: dp * tp], dp, tp, ep),
        axes={"m": STAGE_AXES},
        input_shapes={"a": x, "b": x},
        batch_shapes=Microbatches({"m": {"weights": weights}}, jax.ShapeDtypeStruct((2,), jnp.int32)),
        differentiated_inputs=frozenset(differentiated),
        has_backward=backward,
    )


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
    by_rows = [put(arrays, dict.fromkeys(arrays, P(STAGE_AXES.data))) for arrays in (*inputs, *seeds)]
    return host, (put(parameters, SPECS), by_rows[:MICROBATCHES], batch, by_rows[MICROBATCHES:])


def run(programs, placed):
    """Both microbatches forward, then backward: outputs, losses, input gradients, accumulated parameter gradients."""
    parameters, inputs, batch, output_gradients = placed
    losses, gradients, residuals, outputs, input_gradients = (
        programs.zero_losses(),
        programs.zero_gradients(),
        [],
        [],
        [],
    )
    for number in range(MICROBATCHES):
        result = programs.forward(parameters, inputs[number], batch, np.int32(number), losses)
        losses = result.losses
        outputs.append(result.outputs)
        residuals.append(result.residuals)
    for number in range(MICROBATCHES):
        result = programs.backward(
            parameters, inputs[number], batch, np.int32(number), residuals[number], output_gradients[number], gradients
        )
        gradients = result.parameter_gradients
        input_gradients.append(result.input_gradients)
    return outputs, losses, input_gradients, gradients


def reference(host):
    parameters, inputs, weights, seeds = host

    def total(parameters, inputs):
        losses = {"m": jnp.zeros(()), "m/other": jnp.zeros(())}
        seeded = jnp.zeros(())
        for number in range(MICROBATCHES):
            batch = {"m": {"weights": jnp.asarray(weights[number])}}
            outputs, microbatch_losses, _ = apply(parameters, inputs[number], batch, {"m": Axes()})
            losses = jax.tree.map(jnp.add, losses, microbatch_losses)
            seeded += jnp.sum(outputs["out"] * seeds[number]["out"])
        return losses["m"] + losses["m/other"] + seeded, losses

    (_, losses), gradients = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(parameters, inputs)
    return losses, gradients


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * (1e-3 + np.max(np.abs(expected))))


REMAT = {
    "none": None,
    "selective": functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
    "full": functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable),
}


@pytest.mark.parametrize(
    ("dp", "tp", "ep", "remat"),
    first_in_default(
        [(1, 1, 1, "none"), (2, 2, 1, "none"), (2, 2, 2, "selective"), (4, 1, 2, "full"), (4, 1, 4, "none")]
    ),
)
def test_losses_and_gradients_are_those_of_one_device(dp, tp, ep, remat):
    programs = stage(dp, tp, ep=ep, remat=REMAT[remat])
    host, placed = operands(programs)
    _, losses, input_gradients, gradients = run(programs, placed)
    expected_losses, (expected, expected_input_gradients) = reference(host)
    assert programs.loss_names == ("m", "m/other")
    for name, loss in losses.items():
        assert loss.shape == (dp,)
        close(jnp.sum(loss), expected_losses[name])
    assert {leaf.shape[0] for key in ("m/enter", "m/blocks") for leaf in jax.tree.leaves(gradients[key])} == {dp}
    assert gradients["m/expert"]["bias"].shape[0] == dp // ep  # one copy for each device that holds the same experts
    jax.tree.map(
        lambda actual, reference_gradient: close(np.sum(actual, axis=0), reference_gradient), gradients, expected
    )
    jax.tree.map(close, input_gradients, expected_input_gradients)


def test_frozen_parameters_and_inputs_that_need_none_get_no_gradient():
    programs = stage(2, 2, trained=("m/enter",), differentiated="b")
    host, placed = operands(programs)
    _, _, input_gradients, gradients = run(programs, placed)
    _, (expected, expected_input_gradients) = reference(host)
    assert set(gradients) == {"m/enter"}
    close(np.sum(gradients["m/enter"]["kernel"], axis=0), expected["m/enter"]["kernel"])
    for actual, reference_gradient in zip(input_gradients, expected_input_gradients, strict=True):
        assert set(actual) == {"b"}
        close(actual["b"], reference_gradient["b"])


def test_a_stage_without_a_backward_saves_no_residuals_and_sums_its_losses():
    programs = stage(2, 1, trained=(), differentiated="", backward=False)
    host, (parameters, inputs, batch, _) = operands(programs)
    losses = programs.zero_losses()
    for number in range(MICROBATCHES):
        result = programs.forward(parameters, inputs[number], batch, np.int32(number), losses)
        losses = result.losses
        assert result.residuals == []
    jax.tree.map(lambda actual, expected: close(jnp.sum(actual), expected), losses, reference(host)[0])
    assert programs.backward is None


def test_evaluation_gives_the_outputs_of_the_forward_and_auxiliary_metrics():
    programs = stage(2, 2)
    _, (parameters, inputs, batch, output_gradients) = operands(programs)
    outputs, losses, _, _ = run(programs, (parameters, inputs, batch, output_gradients))
    total = jnp.zeros(())
    for number in range(MICROBATCHES):
        evaluated = programs.evaluate(parameters, inputs[number], batch, np.int32(number))
        close(evaluated.outputs["out"], outputs[number]["out"])
        np.testing.assert_array_equal(evaluated.auxiliary_metrics["m/last"], evaluated.outputs["out"][:, 0])
        total += jnp.sum(evaluated.losses["m"])
    close(total, jnp.sum(losses["m"]))


def test_accumulators_are_donated():
    programs = stage(2, 2)
    _, (parameters, inputs, batch, output_gradients) = operands(programs)
    losses, gradients = programs.zero_losses(), programs.zero_gradients()
    residuals = programs.forward(parameters, inputs[0], batch, np.int32(0), losses).residuals
    programs.backward(parameters, inputs[0], batch, np.int32(0), residuals, output_gradients[0], gradients)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((losses, gradients)))


def test_every_program_is_named_after_its_stage_and_kind():
    programs = stage(2, 1)
    losses, gradients = jax.eval_shape(programs.zero_losses), jax.eval_shape(programs.zero_gradients)
    forward = programs.forward.lower(*programs.operand_shapes, losses)
    output_gradients = {"out": programs.output_shapes["out"]}
    residuals = jax.eval_shape(programs.forward, *programs.operand_shapes, losses).residuals
    lowered = {
        "evaluate": programs.evaluate.lower(*programs.operand_shapes),
        "forward": forward,
        "backward": programs.backward.lower(*programs.operand_shapes, residuals, output_gradients, gradients),
        "zero_gradients": programs.zero_gradients.lower(),
        "zero_losses": programs.zero_losses.lower(),
    }
    for kind, program in lowered.items():
        assert f"module @jit_u_stage0_{kind} " in program.as_text()
    compiled = forward.compile().as_text()
    assert compiled.startswith("HloModule jit_u_stage0_forward")
    assert "u_stage0_forward/" in compiled  # the scope of the operations inside


def test_the_model_is_traced_once_for_all_programs_of_a_step():
    traces = []

    def counted(layer):
        traces.append(layer)
        return layer

    for backward in (True, False):
        programs = stage(2, 2, backward=backward, remat=counted)
        arguments = (*programs.operand_shapes, jax.eval_shape(programs.zero_losses))
        kept = jax.eval_shape(programs.forward, *arguments).residuals
        if backward:
            gradients = jax.eval_shape(programs.zero_gradients)
            jax.eval_shape(programs.backward, *programs.operand_shapes, kept, programs.output_shapes, gradients)
        assert len(traces) == 1
        programs.evaluate.lower(*programs.operand_shapes)
        assert len(traces) == 2
        traces.clear()


def test_program_names_have_no_characters_that_hlo_does_not_allow():
    assert program_name(("my unit", 3), "forward") == "my_unit_stage3_forward"


def residual_bytes(rows, hidden, **options):
    """Bytes of all residuals of one microbatch over all devices, without running anything."""
    programs = stage(2, 2, rows=rows, hidden=hidden, **options)
    result = jax.eval_shape(programs.forward, *programs.operand_shapes, jax.eval_shape(programs.zero_losses))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in result.residuals)


@pytest.mark.parametrize("remat", REMAT)
@pytest.mark.parametrize("trained", [("m/enter", "m/blocks"), ("m/enter",)])
def test_residuals_hold_no_weights(remat, trained):
    """All of them grow with the rows: a copy of a weight, trained or frozen, would be a part that does not."""
    options = {"remat": REMAT[remat], "trained": trained}
    small, large = (residual_bytes(rows, 64, **options) for rows in (4, 8))
    # What does not grow: numbers such as a mean's divisor, and a vector that a product broadcasts over the rows, which
    # is as much as one row of activations, on two data ranks each. The smallest matrix would be more.
    constant = 2 * small - large
    assert 0 <= constant <= 2 * 4 * (1 + LAYERS * WIDTH) < 2 * 4 * WIDTH * WIDTH
    # Nor do they hold more than the activations: for each layer x and its sum, and tanh with its derivative.
    assert 0 < (small - constant) / 4 / 4 <= LAYERS * (3 * 64 + 3 * WIDTH) + 3 * WIDTH
