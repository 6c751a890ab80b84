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
from sharding.plans.plan import Plan, single_device_plan
from sharding.plans.plan_error import PlanError
from tests.mmjax.training.engines import WITHOUT_GENERATOR
from tests.unit_plans import module_unit

KERNEL = (1024, 4096)
TEXT = SampleKind(text_tokens=Lognormal(64, 0.0), image_counts=(0.0, 1.0), image_side=Lognormal(16, 0.0))
NAMES = ("vision", "backbone")
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


def test_state_on_the_host_leaves_the_device_and_is_sent_both_ways_in_every_step():
    """Of two replicas each has half of it; the device has room for the largest layer's state, old and new."""
    statistics, cluster = workload_statistics(WORKLOAD, 8), CLUSTERS["h100"]
    timelines, costs = [], []
    for memory in ("device", "host"):
        workload = dataclasses.replace(WORKLOAD, optimizer=OptimizerConfig(state_memory=memory))
        problem = make_problem(workload, statistics, cluster, 2)
        plan = Plan(
            tuple(module_unit(name, (0, 1), layers=(problem.graph[name].layer_count,), dp=2) for name in NAMES), 2
        )
        timelines.append(problem.simulate(plan))
        costs.append(problem.step_costs(plan).stages)
    elements = sum(module.parameter_count for module in problem.graph.modules)
    on_device, on_host = timelines
    lane = on_device.lanes[0]
    assert on_device.lane_memory(lane)["optimizer"] == on_host.lane_peak_host_memory(lane) == 12 * elements / 2
    assert on_device.lane_peak_host_memory(lane) == on_host.lane_memory(lane)["optimizer"] == 0
    largest = max(layer.parameter_count for module in problem.graph.modules for layer, _ in module.stack)
    assert on_host.lane_memory(lane)["workspace"] >= 2 * 12 * largest / 2
    assert cluster.host_link
    link, latency = 0.8 * cluster.host_link.bandwidth, cluster.host_link.latency
    for name, of_host in costs[1].items():
        share = problem.graph[name[0]].parameter_count / 2
        assert of_host.gather - costs[0][name].gather == pytest.approx(latency + 4 * share / link)
        assert of_host.update - costs[0][name].update == pytest.approx(2 * (latency + 12 * share / link))


def test_a_cluster_without_a_host_link_is_refused():
    workload = dataclasses.replace(WORKLOAD, optimizer=OptimizerConfig(state_memory="host"))
    cluster = dataclasses.replace(CLUSTERS["h100"], host_link=None, host_memory=0)
    problem = make_problem(workload, workload_statistics(WORKLOAD, 8), cluster, 1)
    with pytest.raises(PlanError, match=r"OptimizerConfig.state_memory host .* has no host_link; describe"):
        problem.simulate(single_device_plan(problem.graph, 2))
