"""The layout search against all layouts, its bound, and the rounded relaxation."""

import numpy as np
import pytest
from hypothesis import given, settings

from configs.architectures import ModelConfig
from sharding.planners.layouts.disjoint_layout import ModuleChoice
from sharding.planners.layouts.layout_search import search_layouts, similar_layouts
from sharding.planners.layouts.relaxation import solve_relaxations
from tests.sharding.planners.brute_force import all_layouts, best_layout, fits, options, seconds_of
from tests.sharding.planners.problems import BACKBONE, RANKED, TRANSFORMER, VISION, build_problem, problem, recipes
from tests.tiers import first_in_default


@given(recipes())
@settings(max_examples=10, deadline=None)
def test_equals_the_best_of_all_layouts_and_never_beats_the_bound(recipe):
    equals_brute_force(build_problem({**recipe, "devices": min(recipe["devices"], 9)}))


@pytest.mark.parametrize("ranked", RANKED[1:], ids=["cp", "ep", "both"])
@pytest.mark.parametrize("memory", [1.2e7, 1e9])
def test_equals_the_best_of_all_layouts_with_fixed_ranks(ranked, memory):
    equals_brute_force(problem(ModelConfig((VISION,), BACKBONE, ()), devices=11, rows=6, memory=memory, **ranked))


@pytest.mark.parametrize("memory", [1.2e7, 1e9])
def test_equals_the_best_of_all_layouts_with_a_generator_that_can_be_cut(memory):
    equals_brute_force(problem(ModelConfig((VISION,), BACKBONE, (TRANSFORMER,)), devices=7, rows=6, memory=memory))


def equals_brute_force(case):
    layouts, best = search_layouts(case), best_layout(case)
    assert bool(layouts) == (best is not None)
    if best:
        assert layouts[0].seconds == pytest.approx(best.seconds, rel=1e-9)
        assert layouts[0].devices <= case.devices
        assert layouts[0].seconds == pytest.approx(
            seconds_of(case, case.rows // layouts[0].microbatches, dict(layouts[0].choices)), rel=1e-9
        )
        assert layouts[0].seconds >= solve_relaxations(case).seconds.min() * (1 - 1e-9)


@pytest.mark.parametrize("slack", first_in_default([0.0, 0.05, 0.5]))
@pytest.mark.parametrize("recipe", [{"devices": 9, "rows": 6}, {"devices": 8, "rows": 8, "memory": 1.2e7}])
def test_similar_layouts_have_the_fewest_device_seconds_within_the_slack(recipe, slack):
    case = problem(chunks=(1, 2), **recipe)
    table = case.module_tables["backbone"]

    def sizes(layout):
        choice = layout.choices["backbone"]
        return choice.dp, table.tp[choice.candidate], table.chunks[choice.candidate]

    shortest = search_layouts(case, 4)
    possible = list(all_layouts(case))
    for best in shortest:
        alike = [layout for layout in possible if sizes(layout) == sizes(best)]
        within = [layout for layout in alike if layout.seconds <= best.seconds * (1 + slack) * (1 + 1e-9)]
        similar = similar_layouts(case, best, slack)
        assert [layout.seconds for layout in similar] == sorted(layout.seconds for layout in similar)
        assert {sizes(layout) for layout in similar} == {sizes(best)} and similar[-1].seconds <= max(
            layout.seconds for layout in within
        ) * (1 + 1e-9)
        fewest = min(layout.seconds * layout.devices for layout in within)
        assert min(layout.seconds * layout.devices for layout in similar) == pytest.approx(fewest, rel=1e-9)
        assert similar[0].seconds == pytest.approx(best.seconds, rel=1e-9)


def rounded(case, candidates, index):
    """Seconds of a relaxed optimum with devices rounded down to a possible layout; None if that does not fit."""
    dp, names = int(candidates.dp[index]), case.graph.names
    downstream, choices = float(case.has_generators), {}
    for name in (case.graph.backbone.name, *(name for name in names if name != case.graph.backbone.name)):
        column = names.index(name)
        tp, share = int(candidates.tp[index, column]), candidates.devices[index, column]
        if case.graph[name].is_backbone:
            chunks = int(candidates.chunks[index])
            ok = [
                option
                for option in options(case, dp, name)
                if case.module_tables[name].chunks[option.candidate] == chunks
            ]
            stages = downstream
        else:
            ok = options(case, dp, name)
            stages = 0.0 if case.graph[name].inputs else downstream
        table = case.module_tables[name]
        ok = [option for option in ok if table.tp[option.candidate] == tp and option.devices <= share + 1e-6]
        ok = [option for option in ok if fits(case, dp, name, option, stages)]
        if not ok:
            return None
        choices[name] = max(ok, key=lambda option: option.devices)
        if case.graph[name].is_backbone:
            downstream = float(
                table.downstream_stages_of_sources(np.array([choices[name].candidate]), float(case.has_generators))[0]
            )
    return seconds_of(case, dp, choices)


@pytest.mark.parametrize("devices, rows, memory", [(24, 24, 1e9), (17, 12, 8e6)])
def test_is_never_worse_than_the_rounded_relaxation(devices, rows, memory):
    case = problem(devices=devices, rows=rows, memory=memory, chunks=(1, 2))
    candidates = solve_relaxations(case)
    plans = [rounded(case, candidates, index) for index in np.flatnonzero(np.isfinite(candidates.seconds))]
    plans = [seconds for seconds in plans if seconds]
    assert plans, "no candidate could be rounded"
    assert search_layouts(case)[0].seconds <= min(plans) * (1 + 1e-9)


def test_keeps_the_best_layouts_of_different_backbone_sizes_in_order():
    case = problem(devices=12, chunks=(1, 2))
    layouts = search_layouts(case, 6)
    seconds = [layout.seconds for layout in layouts]
    assert seconds == sorted(seconds) and len(layouts) == 6
    table = case.module_tables["backbone"]
    kinds = {
        (c.dp, table.tp[c.candidate], table.chunks[c.candidate])
        for c in (layout.choices["backbone"] for layout in layouts)
    }
    assert len(kinds) == 6
    assert search_layouts(case)[0].seconds == pytest.approx(seconds[0], rel=1e-9)


def test_layouts_respect_the_most_devices_per_module():
    case = problem(devices=12)
    free = search_layouts(case)[0]
    limits = {name: max(1, choice.devices - 1) for name, choice in free.choices.items()}
    tight = search_layouts(case, max_devices=limits)[0]
    assert all(tight.choices[name].devices <= limits[name] for name in limits)
    assert tight.seconds > free.seconds


def test_a_choice_counts_its_devices():
    case = problem(devices=12)
    for name, choice in search_layouts(case)[0].choices.items():
        table = case.module_tables[name]
        assert choice == ModuleChoice(
            choice.candidate,
            choice.rows,
            choice.dp,
            choice.dp * table.tp[choice.candidate] * table.pp[choice.candidate],
            choice.dealt,
        )
    assert BACKBONE.depth == sum(
        case.module_tables["backbone"].layers[search_layouts(case)[0].choices["backbone"].candidate]
    )
