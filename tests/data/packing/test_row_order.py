"""Row orders keep every row, use the costs that their request names, and leave items where they can be dealt."""

import concurrent.futures
import dataclasses
import itertools
import json

import numpy as np
import pytest

from configs.clusters import CLUSTERS
from data.data_config import DataConfig
from data.errors import DataError
from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import plan_phase_rows
from data.packing.phases.item_tables import PhaseCapacityError
from data.packing.pipeline import training_batches, training_pipeline
from data.packing.planned_row_loads import planned_row_loads, planned_rows
from data.packing.row_order import (
    MAX_PROFILE_BYTES,
    RowOrder,
    RowOrderRequest,
    check_profile_size,
    profile_of_plan,
    reorder_rows,
)
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat
from sharding.balancing.reordering.row_reorderer import RowReorderer
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.profiled import TimedRanks
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_purpose import PlanPurpose
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from tests.profiles import synthetic_profile
from tests.small_vqa import SmallVQA
from tests.tiny_model import tiny_model

MODEL = tiny_model(vocabulary=48)
GRAPH = module_graph(MODEL)
DATA = DataConfig(rows=8, tokens=160, patches=32, images=3, samples=8, window=64)
PLAN = Plan(
    (
        UnitPlan("vision", ("vision",), (0, 1), layers=(2,), parallelism=Parallelism(dp=2)),
        UnitPlan("backbone", ("backbone",), (2, 3), layers=(1, 2), recompute=("none", "none")),
        UnitPlan("generator", ("generator",), (4,)),
    ),
    microbatches=4,
)
COSTS = AnalyticCostModel(CLUSTERS["cpu"], element_bytes=4)


def batches_of(arrange):
    batches = training_batches(DATA, MODEL, SmallVQA("train"), arrange)
    try:
        return [next(batches) for _ in range(3)]
    finally:
        batches.close()


def test_reordered_batches_hold_the_same_rows():
    arranger = RowReorderer(ResolvedPlan(PLAN, GRAPH, trained_parts(GRAPH, ("all",))), COSTS, "search")
    given = batches_of(None)
    ordered = batches_of(RowOrder(arranger, SampleFormat.for_model(MODEL, DATA.encoder_capacities), GRAPH))
    moved = 0
    for before, after in zip(given, ordered, strict=True):
        place = {tuple(row): number for number, row in enumerate(before.sample_ids.tolist())}
        order = np.array([place[tuple(row)] for row in after.sample_ids.tolist()])
        assert sorted(order.tolist()) == list(range(8))
        moved += (order != np.arange(8)).sum()
        expected = reorder_rows(before, order)
        for module, arrays in expected.arrays.items():
            for name, array in arrays.items():
                np.testing.assert_array_equal(after.arrays[module][name], array)
        assert (after.state, after.targets, after.real_and_capacity) == (
            before.state,
            before.targets,
            before.real_and_capacity,
        )
    assert moved


def drawn_rows(seed: int, count: int) -> list[list[SampleSizes]]:
    """Rows of one sample each, with up to four images of one to sixteen tokens to read and up to three to draw."""
    random = np.random.default_rng(seed)
    return [
        [
            SampleSizes(
                tokens=int(random.integers(1, 160)),
                items={"patches": tuple((4 * random.integers(1, 17, random.integers(0, 5))).tolist())},
                images=int(random.integers(0, 4)),
            )
        ]
        for _ in range(count)
    ]


def test_regrouped_rows_fit_the_capacities_of_phases_by_the_lengths_of_their_items():
    vision, *others = PLAN.units
    data = dataclasses.replace(DATA, rows=24, patches=256)
    regrouped = kept = 0
    for seed, capacity in itertools.product(range(12), (96, 112, 128, 144)):
        rows = drawn_rows(seed, 24)
        plan = dataclasses.replace(
            PLAN, units=(dataclasses.replace(vision, phase_rows=4, capacities=(64, capacity)), *others), microbatches=6
        )
        phases = plan_phase_rows(plan, MODEL, global_batch_spec(data, MODEL).arrays)
        sizes = dict(enumerate(sample for (sample,) in rows))
        try:
            phases.plan([[number] for number in sizes], sizes)
        except PhaseCapacityError:
            continue
        row_order = RowOrderRequest(plan, "cpu", ("all",), "intra_microbatch").make_row_order(
            MODEL, SampleFormat.for_model(MODEL, data.encoder_capacities)
        )
        order = row_order(rows)
        phases.plan([[number] for number in order.tolist()], sizes)  # raises where items do not fit
        loads = planned_row_loads(rows, row_order.sample_format, GRAPH)
        without_check = row_order.reorderer.row_order(loads, lambda order: True)
        is_kept = np.array_equal(order, np.arange(24))
        regrouped += not is_kept
        kept += is_kept and not np.array_equal(order, without_check)
    assert regrouped and kept


def test_rows_are_costed_by_the_profile_or_the_cluster_of_the_request():
    sample_format = SampleFormat.for_model(MODEL, DATA.encoder_capacities)
    described = dataclasses.replace(CLUSTERS["h100"], name="h200", peak_flops=1e15)
    plan = dataclasses.replace(PLAN, made_for=PlanPurpose(cluster="h200", described_cluster=described))
    profile = synthetic_profile(GRAPH, "cpu")

    def costs(request):
        again = RowOrderRequest.from_json(json.loads(json.dumps(request.to_json())))
        assert again == request and hash(again) == hash(request)
        return again.make_row_order(MODEL, sample_format).reorderer.costs

    assert costs(RowOrderRequest(PLAN, "h200", ("all",), "both")).peak_flops == CLUSTERS["h200"].peak_flops
    assert costs(RowOrderRequest(plan, "h200", ("all",), "both")).peak_flops == 1e15
    assert costs(RowOrderRequest(plan, "cpu", ("all",), "both")).peak_flops == CLUSTERS["cpu"].peak_flops
    assert costs(RowOrderRequest(plan, "h200", ("all",), "both", profile)).profile == profile


def test_a_request_takes_the_measurements_of_its_plan_alone():
    profile = synthetic_profile(GRAPH, "cpu", rings=(2,))
    plan_profile = profile_of_plan(profile, PLAN, MODEL)
    assert {entry.ranks for entry in plan_profile.layers} == {TimedRanks(1)}
    assert [entry for entry in profile.layers if entry.ranks == TimedRanks(1)] == list(plan_profile.layers)
    check_profile_size(plan_profile)
    many = profile_of_plan(dataclasses.replace(profile, layers=profile.layers * 500), PLAN, MODEL)
    with pytest.raises(
        DataError, match=f"entries for this plan have [0-9]+ bytes, .* has room for {MAX_PROFILE_BYTES}"
    ):
        check_profile_size(many)


def test_two_threads_order_rows_at_once():
    """A producer makes two steps at once."""
    row_order = RowOrderRequest(PLAN, "cpu", ("all",), "search").make_row_order(
        MODEL, SampleFormat.for_model(MODEL, DATA.encoder_capacities)
    )
    rows = planned_rows(training_pipeline(DATA, MODEL, SmallVQA("train")), 8)
    alone = row_order(rows)
    fresh = dataclasses.replace(row_order, reorderer=RowReorderer(row_order.reorderer.resolved, COSTS, "search"))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for order in pool.map(fresh, [rows] * 8):
            np.testing.assert_array_equal(order, alone)
