"""Module tables equal the costs of the plans made from their candidates, if all rows are equal."""

import itertools

import numpy as np
from hypothesis import given, settings

from sharding.planners.layouts.layout_search import search_layouts
from sharding.planners.layouts.placement import plan_of_layout
from sharding.planners.layouts.schedule_fields import generator_stages
from sharding.planners.tables.row_bytes import RowBytes
from tests.sharding.planners.problems import build_problem, problem, recipes, uniform


@given(recipes())
@settings(max_examples=5, deadline=None)
def test_table_entries_match_the_costs_that_the_simulator_gets(recipe):
    case = uniform(build_problem({**recipe, "chunks": (1,)}))
    for layout in search_layouts(case, 2):
        plan = plan_of_layout(case, layout)
        timeline = case.simulate(plan)
        for name, choice in layout.choices.items():
            table, unit = case.module_tables[name], plan.unit_of(name)
            costs = [stage_costs for node, stage_costs in timeline.costs.stages.items() if node[0] == unit.name]
            slowest = max(float((stage_costs.forward + stage_costs.backward).max()) for stage_costs in costs)
            # Between two tabulated numbers of rows, seconds may step where a matmul needs another tile.
            below, above = table.rows[table.rows <= choice.rows].max(), table.rows[table.rows >= choice.rows].min()
            at = np.array([below, choice.rows, above])
            least, tabulated, greatest = table.stage_seconds(np.full(3, choice.candidate), at)[0]
            assert least * (1 - 1e-6) <= min(slowest, tabulated)
            assert max(slowest, tabulated) <= greatest * (1 + 1e-6)
            way, rows, dp, most = (
                np.array([n]) for n in (choice.candidate, choice.rows, choice.dp, layout.microbatches)
            )
            stages = {module: case.module_tables[module].pp[c.candidate] for module, c in layout.choices.items()}
            deep = generator_stages(case, layout)
            downstream = float(deep) if case.graph[name].is_backbone else 0.0
            if not case.graph[name].inputs and not case.graph[name].is_backbone:
                downstream = float(stages[case.graph.backbone.name] + deep)
            need = float(table.peak_bytes(way, rows, dp, np.array([downstream]), most)[0])
            lanes = [lane for lane in timeline.lanes if lane.rank[0] == unit.name]
            held = max(timeline.lane_peak_memory(lane) for lane in lanes)
            static = max(stage_costs.static_bytes for stage_costs in costs)
            # Tables leave out what a stage exchanges: what it holds beyond the state of its kind of stage.
            borders = itertools.pairwise(itertools.accumulate(unit.layers, initial=0))
            owned = [case.graph[name].count_kinds(*border) for border in borders]
            kinds = [(number == 0, counts, number == unit.pp - 1) for number, counts in enumerate(owned)]
            state = dict(zip(dict.fromkeys(kinds), table.static_bytes(way, rows, dp)[0], strict=False))
            exchanged = max(
                stage_costs.static_bytes - state[kind] for stage_costs, kind in zip(costs, kinds, strict=True)
            )
            assert held <= (need + exchanged) * (1 + 1e-6)
            assert need - static <= (held - static) * 3 + 1  # a stage need not be as full as it may be


def test_sequence_and_expert_ranks_divide_what_a_device_holds():
    problems = [problem(experts=4, ranks=(("backbone", *ranks),)) for ranks in ((1, 1), (4, 1), (1, 2), (1, 4))]
    tables = [case.module_tables["backbone"] for case in problems]
    ways = np.arange(len(tables[0].tp))
    one, ring, two, four = tables
    np.testing.assert_allclose(ring.saved.maximum, one.saved.maximum / 4)
    np.testing.assert_array_equal(ring.replica_devices, 4 * one.replica_devices)
    rows, dp, downstream, most = (np.full(len(ways), n) for n in (0, 4, 1.0, 2))  # without the buffers of experts
    bytes_of = [table.peak_bytes(ways, rows, dp, downstream, most) for table in tables]
    assert (bytes_of[0] > bytes_of[2]).all() and (bytes_of[2] > bytes_of[3]).all() and (bytes_of[0] > bytes_of[1]).all()
    np.testing.assert_allclose(two.experts, one.experts / 2)
    np.testing.assert_array_equal(two.parameters, one.parameters)
    assert [list(case.replica_shares("backbone", 4).replicas) for case in problems] == [[4]] * 4
    assert not len(problems[3].replica_shares("backbone", 6).replicas)


def test_max_rows_is_the_inverse_of_upper_bound():
    held = RowBytes(np.array([10.0, 10.0, 0.0]), np.array([3.0, 0.0, 0.0]), np.array([15.0, 10.0, 0.0]))
    rows = held.max_rows(np.array([200.0, 200.0, 0.0]))
    assert rows[2] == np.inf
    np.testing.assert_allclose(held.upper_bound(np.where(np.isinf(rows), 1.0, rows))[:2], 200.0)
    assert (held.max_rows(np.full(3, -1.0)) < 0).all()
    np.testing.assert_allclose(held.upper_bound(np.ones(3)), [15.0, 10.0, 0.0])  # never more than the largest row each
