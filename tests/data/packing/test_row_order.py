"""Row orders keep every row."""

import numpy as np

from configs.clusters import CLUSTERS
from data.data_config import DataConfig
from data.packing.pipeline import training_batches
from data.packing.row_order import RowOrder, reorder_rows
from data.samples.sample_format import SampleFormat
from sharding.balancing.reordering.row_reorderer import RowReorderer
from sharding.costs.analytic import AnalyticCostModel
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
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
