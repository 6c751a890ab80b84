"""Nodes wait for those that held one of their devices, and for no others."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.recurrence.graph_builder import NO_NODE
from sharding.schedules.recurrence.shared_devices import StageDevices

DEVICES = 6


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    """The devices of some nodes, [nodes, devices of each]; nodes may have devices in common."""
    width, count = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    held = st.lists(st.integers(0, DEVICES - 1), min_size=width, max_size=width)
    return np.array(draw(st.lists(held, min_size=count, max_size=count)))


@settings(max_examples=100, deadline=None)
@given(tables(), tables())
def test_nodes_wait_for_those_that_share_a_device(waiting, holding):
    stages = {("unit", device): np.array([[device]]) for device in range(DEVICES)}  # so that groups are devices
    devices = StageDevices(stages, StageGraph({stage: frozenset([stage[1]]) for stage in stages}, ()))
    waits = devices.of(waiting).waits_for(devices.of(holding))
    for node, held in enumerate(waiting):
        expected = [other for other, others in enumerate(holding) if set(held) & set(others)]
        assert sorted(entry for entry in waits[:, node].tolist() if entry != NO_NODE) == expected


def test_classes_are_of_devices_in_the_same_stages():
    near, far = ("near", 0), ("far", 0)
    held = {near: np.array([[0], [1], [2]]), far: np.array([[1, 2]])}
    graph = StageGraph({near: frozenset([0, 1, 2]), far: frozenset([1, 2])}, ())
    devices = StageDevices(held, graph)
    assert devices.class_count == 2
    ((near_replicas,), (far_replica,)) = devices.of_pipeline_replicas(near), devices.of_pipeline_replicas(far)
    assert len(near_replicas.classes) == 2 and set(far_replica.classes) < set(near_replicas.classes)
    np.testing.assert_array_equal(far_replica.waits_for(near_replicas), [[1], [2]])
    np.testing.assert_array_equal(near_replicas.waits_for(far_replica), [[NO_NODE, 0, 0]])
