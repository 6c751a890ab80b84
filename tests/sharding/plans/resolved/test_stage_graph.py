"""Which stages a plan makes, and which feeds which."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import ModelConfig, UNetConfig, VisionConfig
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan, resolve_plan
from sharding.plans.resolved.stage_graph import StageGraph, device_classes
from sharding.plans.schedule_hints import ScheduleHints
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph, module_graph
from tests.sharding.stage_graphs import fan
from tests.unit_plans import flat_unit


def unit(name, modules, devices, layers, **more):
    return flat_unit(name, modules, devices, layers=layers, recompute=("none",) * len(layers), **more)


def test_edges_join_the_stages_that_own_last_and_first_layers():
    config = ModelConfig(
        encoders=(VisionConfig(name="near"), VisionConfig(name="far")),
        generators=(UNetConfig(name="paint"), UNetConfig(name="draw")),
    )
    units = (
        unit("front", ("near", "backbone", "paint"), (0, 1, 2), (1, 3, 3)),  # near | near backbone | backbone paint
        unit("side", ("far",), (3, 4), (1, 1)),
        unit("tail", ("draw",), (5, 6), (1,), dp=2),
    )
    graph = ResolvedPlan(Plan(units), module_graph(config)).stages
    assert set(graph.edges) == {
        (("front", 0), ("front", 1)),
        (("front", 1), ("front", 2)),
        (("side", 0), ("side", 1)),
        (("side", 1), ("front", 1)),
        (("front", 2), ("tail", 0)),
    }
    assert graph.devices[("tail", 0)] == {5, 6} and graph.all_devices == set(range(7))
    assert graph.stages.index(("side", 1)) < graph.stages.index(("front", 1))


def test_heights_and_depths_are_longest_paths():
    graph = fan(1, 3, 2)
    assert {node: graph.heights[node] for node in graph.stages} == {
        ("near", 0): 4, ("far", 0): 6, ("far", 1): 5, ("far", 2): 4,
        ("backbone", 0): 3, ("backbone", 1): 2, ("paint", 0): 1, ("draw", 0): 1,
    }  # fmt: skip
    assert graph.depths[("near", 0)] == 1 and graph.depths[("draw", 0)] == 6
    assert graph.with_descendants(frozenset([("far", 2)])) == set(graph.stages) - {("near", 0), ("far", 0), ("far", 1)}


def test_chunks_share_a_pipeline_rank_and_its_devices():
    units = (
        UnitPlan("a", ("a",), (4, 5), parallelism=Parallelism(dp=2)),
        unit("b", ("b",), (0, 1, 2, 3), (1,) * 6, dp=2, chunks=3),
    )
    graph = ResolvedPlan(Plan(units), ModuleGraph((ModuleSpec("a", 1), ModuleSpec("b", 6, ("a",))))).stages
    assert graph.stages == (("a", 0), *(("b", stage) for stage in range(6)))
    assert graph.edges == (*(((("b", s), ("b", s + 1))) for s in range(5)), (("a", 0), ("b", 0)))
    assert [graph.devices["b", stage] for stage in range(6)] == [{0, 1}, {2, 3}] * 3
    assert graph.stages_of == {
        ("a", 0): (("a", 0),), ("b", 0): (("b", 0), ("b", 2), ("b", 4)), ("b", 1): (("b", 1), ("b", 3), ("b", 5)),
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"the chunks of \('b', 0\) must be on the same devices"):
        StageGraph(graph.devices, graph.edges, {"b": 3})


def test_a_microbatch_has_a_position_among_those_of_its_copy():
    replicated = UnitPlan(
        "a",
        ("a",),
        (0, 1, 2),
        parallelism=Parallelism(pipeline_replicas=3),
        schedule_hints=ScheduleHints(replica_of_microbatch=(2, 0, 2, 1, 0, 2)),
    )
    graph = ResolvedPlan(
        Plan((replicated, UnitPlan("b", ("b",), (3,))), 6),
        ModuleGraph((ModuleSpec("a", 1), ModuleSpec("b", 1, ("a",)))),
    ).stages
    for pipeline_replica, taken in enumerate(((1, 4), (3,), (0, 2, 5))):
        assert graph.microbatches_of("a", pipeline_replica, 6) == taken
        assert [graph.position_at("a", microbatch) for microbatch in taken] == list(range(len(taken)))
    assert [graph.position_at("b", microbatch) for microbatch in range(6)] == list(range(6))


@given(st.lists(st.frozensets(st.integers(0, 9)), max_size=5))
@settings(max_examples=50, deadline=None)
def test_devices_of_a_class_are_in_the_same_sets(held):
    classes = device_classes(held)
    memberships = [{frozenset(n for n, lanes in enumerate(held) if lane in lanes) for lane in c} for c in classes]
    assert all(len(membership) == 1 for membership in memberships) and len(set().union(*memberships)) == len(classes)
    assert sorted(lane for c in classes for lane in c) == sorted(set().union(*held))


def test_a_cycle_of_stages_is_refused():
    modules = ModuleGraph((ModuleSpec("a", 1), ModuleSpec("b", 1, ("a",)), ModuleSpec("c", 1, ("a", "b"))))
    plan = Plan((UnitPlan("outer", ("a", "c"), (0,), layers=(2,)), UnitPlan("inner", ("b",), (1,))))
    with pytest.raises(PlanError, match="outer 0, inner 0 wait for each other"):
        resolve_plan(plan, modules, 2)


@pytest.mark.parametrize(
    ("lanes", "edges", "message"),
    [
        ({("a", 0): frozenset([0]), ("b", 0): frozenset([1])}, ((("b", 0), ("a", 0)),), "does not come before"),
        ({("a", 0): frozenset([0])}, ((("a", 0), ("b", 0)),), "not in the graph"),
        ({("a", 0): frozenset()}, (), "has no device"),
    ],
)
def test_an_invalid_graph_is_refused(lanes, edges, message):
    with pytest.raises(ValueError, match=message):
        StageGraph(lanes, edges)


def test_a_unit_without_a_pipeline_rank_and_an_exchange_that_is_no_edge_are_refused():
    lanes = {("a", 0): frozenset([0]), ("b", 0): frozenset([1])}
    with pytest.raises(ValueError, match="a unit has at least one"):
        StageGraph(lanes, (), {"a": 0})
    with pytest.raises(ValueError, match="are exchanges, but no edges"):
        StageGraph(lanes, (), exchanges=frozenset({(("a", 0), ("b", 0))}))
