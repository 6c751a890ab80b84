"""A published model of 110 B parameters on a plan: its programs are lowered, and nothing of it is made."""

import math

import jax
import pytest

from configs.architectures import ModelConfig
from data.data_config import RowCapacity
from data.packing.global_batch import build_global_batch, capacity_for_model
from data.packing.rows.packed_rows import pack_samples
from data.samples.sample_format import SampleFormat
from mmjax import cli
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from sharding.plans.plan import Plan
from sharding.plans.unit_layers import stage_layers
from sharding.specs.modules import module_graph
from tests.unit_plans import module_unit

TP = 4
PLAN = Plan(
    (
        module_unit("vision", (0, 1), layers=(45,), name="internvit", recompute=("full",), dp=2),
        module_unit("backbone", range(2 * TP), layers=(39, 41), name="qwen", recompute=("full", "selective"), tp=TP),
    ),
    microbatches=2,
)


@pytest.fixture(scope="module", autouse=True)
def mixed_precisions():
    with jax.numpy_dtype_promotion("standard"):  # jax's own attention asks which of two precisions is wider
        yield


@pytest.fixture(scope="module")
def engine() -> Engine:
    cli.parse_gin(("models/internvit_6b_qwen1_5_110b.gin",))
    config = cli.configured(ModelConfig)
    form = SampleFormat.for_model(config, {"patches": 2056})
    capacity = capacity_for_model(RowCapacity(tokens=4096, lengths={"patches": 2056}, images=0, samples=8), form)
    return Engine(
        config, PLAN, build_global_batch(pack_samples([], 4, capacity, form), config, form).arrays, EngineSettings()
    )


def test_every_stage_is_lowered_forward_and_backward(engine):
    for node, stage in engine.executor.stages.items():
        programs = stage.programs
        loss = jax.eval_shape(programs.zero_losses)
        text = programs.forward.lower(*programs.operand_shapes, loss).as_text()
        assert "while" in text, f"{node}: the layers are a loop, not copies of each other"
        assert len(text) < 1e6, f"{node}: {len(text)} characters"
        assert programs.backward is not None


def test_a_device_holds_what_the_planner_counts(engine):
    graph = module_graph(engine.config)
    for unit in PLAN.units:
        for stage, runs in enumerate(stage_layers(unit, graph)):
            masters = engine.stages[unit.name, stage].master_weights
            shards = jax.tree.map(
                lambda shape, spec, mesh=masters.mesh: math.prod(
                    jax.sharding.NamedSharding(mesh, spec).shard_shape(shape.shape)
                ),
                masters.compute_shapes,
                masters.compute_specs,
            )
            expected = sum(
                n * layer.parameters_per_rank(unit.parallelism.tp)
                for name, *span in runs
                for layer, n in graph[name].layers_between(*span)
            )
            assert sum(jax.tree.leaves(shards)) == expected
