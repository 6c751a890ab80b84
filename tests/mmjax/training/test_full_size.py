"""A published model of 110 B parameters on a plan: its programs are lowered, and nothing of it is made."""

import math

import jax
import pytest

from configs.architectures import ModelConfig
from data.batch import batch_capacity, global_batch
from data.formats import SampleFormat
from data.packing import Capacity, pack_samples
from mmjax import cli
from mmjax.training.engine import Engine
from mmjax.training.settings import Settings
from sharding.plan import Plan, UnitPlan, stage_layers
from sharding.specs import module_graph

TP = 4
PLAN = Plan(
    (
        UnitPlan("internvit", ("vision",), (0, 1), dp=2, layers=(45,), recompute=("full",)),
        UnitPlan("qwen", ("backbone",), tuple(range(2 * TP)), tp=TP, layers=(39, 41), recompute=("full", "selective")),
    ),
    microbatches=2,
)


@pytest.fixture(scope="module", autouse=True)
def mixed_precisions():
    with jax.numpy_dtype_promotion("standard"):  # jax's own attention asks which of two precisions is wider
        yield


@pytest.fixture(scope="module")
def engine() -> Engine:
    cli.parse_flags(["tests"])
    cli.parse_gin("models/internvit_6b_qwen1_5_110b.gin")
    config = cli.configured(ModelConfig)
    form = SampleFormat.of(config, 2056)
    capacity = batch_capacity(Capacity(tokens=4096, patches=2056, images=0, samples=8), form)
    return Engine(config, PLAN, global_batch(pack_samples([], 4, capacity, form), config, form).arrays, Settings())


def test_every_stage_is_lowered_forward_and_backward(engine):
    for node, stage in engine.executor.stages.items():
        programs = stage.programs
        loss = jax.eval_shape(programs.zero_losses)
        text = programs.forward.lower(*programs._abstract, loss).as_text()
        assert "while" in text, f"{node}: the layers are a loop, not copies of each other"
        assert len(text) < 1e6, f"{node}: {len(text)} characters"
        assert programs.backward is not None


def test_a_device_holds_what_the_planner_counts(engine):
    graph = module_graph(engine.config)
    for unit in PLAN.units:
        for stage, runs in enumerate(stage_layers(unit, graph)):
            masters = engine.masters[unit.name, stage]
            shards = jax.tree.map(
                lambda shape, spec, mesh=masters.mesh: math.prod(
                    jax.sharding.NamedSharding(mesh, spec).shard_shape(shape.shape)
                ),
                masters.shapes,
                masters.specs,
            )
            expected = sum(n * layer.on_rank(unit.tp) for name, *span in runs for layer, n in graph[name].run(*span))
            assert sum(jax.tree.leaves(shards)) == expected
