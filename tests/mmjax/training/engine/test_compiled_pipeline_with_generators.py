"""Steps of a pipeline whose forwards and backwards are a program each, against one device: generators stand between."""

import dataclasses

import jax
import numpy as np
import pytest

from configs.architectures import ModelConfig
from mmjax.training.engine.compilation import compile_evaluation, compile_step
from mmjax.training.engine.engine import Engine
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime import executor
from sharding.runtime.op_recorder import OpRecorder
from sharding.runtime.stages.compilation import stage_calls
from sharding.runtime.step_buffers import StepBuffers
from sharding.schedules.ops import PipelineOp
from tests.mmjax.training.engine.test_compilation import compilations
from tests.mmjax.training.engine.test_compiled_pipeline import DEEP, TIED, backbone
from tests.mmjax.training.engines import SETTINGS, STEP, assert_step_of_one_device, noisy_state, shared_engine
from tests.tiny_model import LATENT_GENERATOR, TRANSFORMER_GENERATOR, VISION, tiny_batch
from tests.unit_plans import flat_unit

pytestmark = pytest.mark.layouts

MODEL = ModelConfig((VISION,), DEEP, (TRANSFORMER_GENERATOR,))
TWO_GENERATORS = dataclasses.replace(TIED, generators=(TRANSFORMER_GENERATOR, LATENT_GENERATOR))
EYES = UnitPlan("vision", ("vision",), (0,), layers=(2,))


def generator(*devices, **unit):
    return flat_unit("generator", ("generator",), devices, **unit)


@pytest.mark.parametrize(
    ("unit", "microbatches", "schedule"),
    [
        pytest.param(backbone(2, first=1, chunks=2, tp=2, collectives="ring"), 4, "interleaved", id="chunks, a ring"),
        pytest.param(backbone(2, first=1, dp=2, fsdp=2, recompute="full"), 2, "gpipe", id="fully sharded"),
        pytest.param(backbone(2, first=1, cp=2, recompute="selective"), 4, "1f1b", id="context-parallel ranks"),
        pytest.param(backbone(4, first=1), 2, "1f1b", id="fewer microbatches than ranks"),
        pytest.param(backbone(1, first=1, dp=2), 1, "1f1b", id="one rank"),
    ],
)
def test_a_generator_behind_it(unit, microbatches, schedule):
    plan = Plan((EYES, unit, generator(6, 7, dp=2)), microbatches, schedule)
    assert_step_of_one_device(shared_engine(plan, MODEL))


@pytest.mark.parametrize(
    ("trainable", "has_backward"),
    [
        pytest.param(("vision",), True, id="the encoder alone"),
        pytest.param(("backbone",), True, id="the backbone alone"),
        pytest.param(("generator",), False, id="the generator alone"),
    ],
)
def test_parts_that_are_frozen(trainable, has_backward):
    plan = Plan((EYES, backbone(2, first=1), generator(0)), 2)
    engine = shared_engine(plan, MODEL, dataclasses.replace(SETTINGS, trainable=trainable))
    assert_step_of_one_device(engine)
    programs = engine.executor.stages["backbone", 0].programs
    assert (programs.backward is not None) == has_backward
    assert bool(programs.differentiated_inputs) == (trainable == ("vision",))


@pytest.fixture(scope="module")
def engine():
    """Tied embeddings and two generators, on three microbatches."""
    units = (EYES, generator(0), UnitPlan("painter", ("painter",), (1,)))
    plan = Plan((*units, backbone(2, first=2, dp=2, chunks=2)), 3, "interleaved")
    return Engine(TWO_GENERATORS, plan, tiny_batch(TWO_GENERATORS, 12), SETTINGS)


def test_two_generators_and_tied_embeddings(engine):
    assert_step_of_one_device(engine, 12)


def test_an_evaluation_has_the_losses_of_each_microbatch_and_nothing_compiles_after_the_start(engine):
    compile_step(engine, lambda done, total: None)
    compile_evaluation(engine, lambda done, total: None)
    placed, state = engine.place_batch(tiny_batch(TWO_GENERATORS, 12), STEP), noisy_state(engine)
    with compilations() as compiled:
        weights = engine.executor.compute_weights(state)
        evaluated = engine.executor.evaluate(weights, placed)
        _, summary = engine.executor.step(state, placed)
    assert not compiled
    losses = 0.0
    for unit in ("backbone", "generator", "painter"):
        unit_outputs = evaluated[unit, 0]
        assert sorted(unit_outputs) == [0, 1, 2]
        losses += sum(float(np.sum(loss)) for outputs in unit_outputs.values() for loss in outputs.losses.values())
    np.testing.assert_allclose(losses, float(np.sum(summary.losses)), rtol=1e-5)


def test_between_its_programs_it_holds_all_microbatches_and_each_rank_some_of_what_left_the_stack(engine):
    programs = engine.executor.stages["backbone", 0].programs
    (step, _), *_ = stage_calls([programs])
    saved_state = jax.eval_shape(step.program, *step.arguments).saved_state
    devices, slots, *_ = saved_state[0].shape
    assert (devices, slots) == (4, 3 * 2)  # of 2 ranks and 2 replicas; 3 microbatches in 2 chunks
    assert {array.shape[1] for array in saved_state[1:-2]} == {3 * 2}
    assert [array.shape[:2] for array in saved_state[-2:]] == [
        (4, 2),
        (4, 2),
    ]  # 3 microbatches on 2 ranks, and gradients


def test_backwards_do_not_compute_the_head_where_weights_are_fully_sharded():
    """Its norm feeds the generator; its vocabulary does not."""

    def matmuls(**fsdp):
        plan = Plan((EYES, backbone(2, first=1, dp=2, **fsdp), generator(0)), 2)
        programs = shared_engine(plan, MODEL).executor.stages["backbone", 0].programs
        _, backward = stage_calls([programs]).calls
        assert backward.program is programs.backward
        return backward.program.lower(*backward.arguments).compile().as_text().count(" dot(")

    assert matmuls(fsdp=2) == matmuls() > 0


def test_after_a_step_nothing_of_it_is_left(engine, monkeypatch):
    steps = []

    def buffers(**fields):
        steps.append(StepBuffers(**fields))
        return steps[-1]

    monkeypatch.setattr(executor, "StepBuffers", buffers)
    engine.executor.gradients(noisy_state(engine), engine.place_batch(tiny_batch(TWO_GENERATORS, 12), STEP))
    (left,) = steps
    channels = (left.inputs, left.outputs, left.input_gradients, left.output_gradients)
    assert not any((*channels, left.saved_state, left.residuals, left.unreduced_gradients))


def test_a_recorder_knows_when_its_programs_are_finished():
    """The program of backwards returns nothing but gradients, which the reduction takes."""
    plan = Plan((EYES, backbone(2, first=1), generator(0)), 2)
    engine = shared_engine(plan, MODEL, dataclasses.replace(SETTINGS, trainable=("backbone",)))
    placed, state = engine.place_batch(tiny_batch(MODEL), STEP), noisy_state(engine)
    with OpRecorder(engine.executor, engine.devices) as recorder:
        engine.executor.step(state, placed, recorder)
    assert recorder.failure is None
    ends = {op: times for op, times in recorder.finished.items() if op.unit == "backbone" and times}
    forward, backward = (PipelineOp(kind, "backbone", 0, 1) for kind in ("forward", "backward"))
    reduce = PipelineOp("reduce", "backbone", 0)
    assert set(ends[forward]) == set(ends[backward]) == {1, 2}
    assert PipelineOp("forward", "backbone", 0, 0) not in ends and PipelineOp("backward", "backbone", 0, 0) not in ends
    for device in (1, 2):
        assert ends[forward][device] < ends[backward][device] < ends[reduce][device]
