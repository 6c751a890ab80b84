"""Tables of ways to cut against the costs of the plans that they become, where all rows are alike."""

import numpy as np
import pytest
from hypothesis import given, settings

from sharding.planners.layouts import layout_plan
from sharding.planners.module_table import Held
from sharding.planners.search import search
from tests.sharding.planners.problems import cook, problem, recipes, uniform


@given(recipes())
@settings(max_examples=5, deadline=None)
def test_stages_take_what_the_simulator_is_told(recipe):
    of = uniform(cook({**recipe, "chunks": (1,)}))
    for layout in search(of, 2):
        plan = layout_plan(of, layout)
        timeline = of.rehearse(plan)
        for name, choice in layout.choices.items():
            table, unit = of.tables[name], plan.unit_of(name)
            costs = [of_stage for node, of_stage in timeline.costs.stages.items() if node[0] == unit.name]
            slowest = max(float((each.forward + each.backward).max()) for each in costs)
            column = 0 if table.module.backbone else list(table.rows).index(choice.rows)
            assert table.stage[choice.way, column] == pytest.approx(slowest, rel=1e-6)
            way, rows, dp, most = (np.array([n]) for n in (choice.way, choice.rows, choice.dp, layout.microbatches))
            stages = {module: of.tables[module].pp[c.way] for module, c in layout.choices.items()}
            behind = float(of.deep) if of.graph[name].backbone else 0.0
            if not of.graph[name].inputs and not of.graph[name].backbone:
                behind = stages[of.graph.backbone.name] + float(of.deep)
            need = float(table.bytes(way, rows, dp, np.array([behind]), most)[0])
            lanes = [lane for lane in timeline.lanes if lane.place[0] == unit.name]
            held = max(timeline.memory_of(lane) for lane in lanes)
            assert held <= need * (1 + 1e-6)
            static = max(each.static for each in costs)
            assert need - static <= (held - static) * 3 + 1  # a stage need not be as full as it may be


def test_sequence_and_expert_ranks_divide_what_a_device_holds():
    tables = [
        problem(experts=4, ranks=(("backbone", *ranks),)).tables["backbone"]
        for ranks in ((1, 1), (4, 1), (1, 2), (1, 4))
    ]
    ways = np.arange(len(tables[0].tp))
    one, ring, two, four = tables
    np.testing.assert_allclose(ring.held.most, one.held.most / 4)
    np.testing.assert_array_equal(ring.instance_devices, 4 * one.instance_devices)
    rows, dp, behind, most = (np.full(len(ways), n) for n in (1, 4, 1.0, 2))
    bytes_of = [table.bytes(ways, rows, dp, behind, most) for table in tables]
    assert (bytes_of[0] > bytes_of[2]).all() and (bytes_of[2] > bytes_of[3]).all() and (bytes_of[0] > bytes_of[1]).all()
    np.testing.assert_allclose(two.experts, one.experts / 2)
    np.testing.assert_array_equal(two.parameters, one.parameters)
    assert [list(table.instances(4)[1]) for table in (one, two, four)] == [[4]] * 3
    assert not len(four.instances(6)[0])


def test_room_and_bytes_are_inverse():
    held = Held(np.array([10.0, 10.0, 0.0]), np.array([3.0, 0.0, 0.0]), np.array([15.0, 10.0, 0.0]))
    rows = held.rows_in(np.array([200.0, 200.0, 0.0]))
    assert rows[2] == np.inf
    np.testing.assert_allclose(held.of(np.where(np.isinf(rows), 1.0, rows))[:2], 200.0)
    assert (held.rows_in(np.full(3, -1.0)) < 0).all()
    np.testing.assert_allclose(held.of(np.ones(3)), [15.0, 10.0, 0.0])  # never more than the largest row each
