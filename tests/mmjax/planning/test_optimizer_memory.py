"""The bytes that costs count for an optimizer are those of the state that it makes, and plans have room accordingly."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from configs.clusters import CLUSTERS
from configs.optimizer import SGD, Adafactor, AdamW, Lion, Muon, OptimizerConfig
from configs.workloads import Lognormal, SampleKind, SyntheticData, Workload
from mmjax.planning.problem import make_problem, workload_statistics
from mmjax.training.engine.optimizers.layer_optimizer import LayerOptimizer
from sharding.costs.optimizer_memory import OptimizerMemory
from sharding.plans.plan import single_device_plan
from tests.mmjax.training.engines import WITHOUT_GENERATOR

KERNEL = (1024, 4096)
TEXT = SampleKind(text_tokens=Lognormal(64, 0.0), image_counts=(0.0, 1.0), image_side=Lognormal(16, 0.0))
WORKLOAD = Workload(WITHOUT_GENERATOR, SyntheticData(128, ((TEXT, 1.0),)), 8)


ALGORITHMS = [
    Adafactor(),
    *(kind(moment_dtype=dtype) for kind in (AdamW, Lion, SGD, Muon) for dtype in ("float32", "bfloat16")),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_an_element_of_a_matrix_takes_the_bytes_of_its_state(algorithm):
    shapes = {"kernel": jax.ShapeDtypeStruct(KERNEL, jnp.float32)}
    leaves = jax.tree.leaves(jax.eval_shape(LayerOptimizer(algorithm).init, shapes))
    elements = KERNEL[0] * KERNEL[1]
    made = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) / elements
    assert OptimizerMemory.of(OptimizerConfig(algorithm=algorithm)).moment_bytes == pytest.approx(made, abs=0.01)


def test_a_device_holds_four_bytes_less_for_each_element_with_moments_in_bfloat16():
    statistics = workload_statistics(WORKLOAD, 8)
    held, updates = [], []
    for algorithm in (AdamW(), AdamW(moment_dtype="bfloat16")):
        workload = dataclasses.replace(WORKLOAD, optimizer=OptimizerConfig(algorithm=algorithm))
        problem = make_problem(workload, statistics, CLUSTERS["h100"], 1)
        plan = single_device_plan(problem.graph, 2)
        timeline = problem.simulate(plan)
        held.append(timeline.lane_memory(timeline.lanes[0])["optimizer"])
        updates.append(sum(costs.update for costs in problem.step_costs(plan).stages.values()))
    elements = sum(module.parameter_count for module in problem.graph.modules)
    assert held == [12 * elements, 8 * elements]
    assert updates[0] - updates[1] == pytest.approx(8 * elements / (CLUSTERS["h100"].memory_bandwidth * 0.8))
