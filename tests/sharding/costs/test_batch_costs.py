"""Rows go to replicas in order, and what equal loads take is computed once, for all plans."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.clusters import CLUSTERS
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts, distinct_loads, replica_loads
from sharding.costs.cost_model import LayerParallelism
from sharding.costs.own_rows import dealt_loads
from sharding.plans.plan_error import PlanError
from sharding.specs.modules import module_graph
from tests.sharding.planners.problems import MODEL

GRAPH = module_graph(MODEL)


def test_rows_go_to_replicas_in_order():
    rows = np.arange(32.0).reshape(8, 4)
    np.testing.assert_array_equal(replica_loads(rows, 2, 2)[1, 0], rows[4] + rows[5])
    assert replica_loads(rows, 4, 1).sum() == rows.sum()


def test_more_replicas_than_rows_share_the_items_of_a_row():
    rows = np.array([[50.0, 500.0, 5.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    dealt = replica_loads(rows, 2, 4)
    np.testing.assert_array_equal(dealt[0, :, 2], [2, 1, 1, 1])
    np.testing.assert_array_equal(dealt[0, :, 0], [20, 10, 10, 10])
    assert not dealt[1].any()
    with pytest.raises(PlanError, match="dp 3 neither divides the 2 rows"):
        replica_loads(np.ones((2, 4)), 1, 3)
    with pytest.raises(PlanError, match="5 rows of the global batch are not divisible by 2 microbatches"):
        replica_loads(np.ones((5, 4)), 2, 1)


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=20))
def test_distinct_loads_give_all_loads_again(rows):
    loads = np.array(rows, float)
    distinct, index = distinct_loads(loads)
    np.testing.assert_array_equal(distinct[index], loads)
    assert len(distinct) == len(set(rows))


@given(st.sampled_from([(1, 1), (2, 3), (6, 2), (12, 1), (3, 8), (1, 12)]), st.integers(0, 9))
def test_replicas_have_the_costs_of_their_own_loads(division, seed):
    microbatches, dp = division
    rows = np.random.default_rng(seed).integers(0, 3, (12, 4)).astype(float)
    batch = BatchCosts(GRAPH, AnalyticCostModel(CLUSTERS["a100"]), {"vision": rows})
    replicas, ranks = batch.loads("vision", microbatches, dp), LayerParallelism(dp=dp)
    np.testing.assert_array_equal(replicas.distinct[replicas.index], replica_loads(rows, microbatches, dp))
    layer = batch.layer("vision", GRAPH["vision"].layer.name, 1, ("dgrad",), ranks, "none", microbatches)
    expected = batch.costs.forward(GRAPH["vision"].layer, replica_loads(rows, microbatches, dp), ranks)
    np.testing.assert_allclose(layer.forward.total[replicas.index], expected.total, rtol=1e-12)


def test_plans_that_divide_the_batch_into_as_many_parts_share_what_layers_take():
    class CountingCosts(AnalyticCostModel):
        calls = 0

        def forward(self, layer, loads, ranks, stack=1):
            CountingCosts.calls += 1
            return super().forward(layer, loads, ranks, stack)

    rows = np.array([[64.0, 64.0**2, 1.0, 0.0], [32.0, 32.0**2, 1.0, 0.0]] * 6)
    batch = BatchCosts(GRAPH, CountingCosts(CLUSTERS["a100"]), {"vision": rows})
    layer, ranks = GRAPH["vision"].layer.name, LayerParallelism(dp=2)
    layers = [batch.layer("vision", layer, 1, (), ranks, "none", 6) for _ in range(3)]
    assert CountingCosts.calls == 1 and layers[0].flops.shape == (2,)
    with pytest.raises(PlanError, match="not divisible by 24 microbatches"):
        batch.loads("vision", 24, 1)


def test_items_of_a_microbatch_are_dealt_over_any_number_of_replicas():
    rows = np.array([[50.0, 500.0, 5.0, 0.0], [20.0, 100.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0], [8.0, 8.0, 0.0, 0.0]])
    of_kinds, kind = dealt_loads(replica_loads(rows, 2, 1)[:, 0], 3)
    dealt = np.take_along_axis(of_kinds, kind[:, :, None], axis=1)
    np.testing.assert_array_equal(dealt[0, :, 2], [3, 2, 2])
    np.testing.assert_allclose(dealt[0, :, 0], [30, 20, 20])
    np.testing.assert_allclose(dealt[1, :, 0], [8 / 3] * 3)  # a load without items is divided evenly
    np.testing.assert_allclose(dealt.sum(axis=(0, 1)), rows.sum(axis=0))
