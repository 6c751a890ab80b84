"""What units with rows of their own compute: capacities, padding included; nothing for a microbatch without items."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.architectures import ModelConfig
from sharding.costs.own_rows import OwnRows, dealt_loads, dealt_shares, executed_loads, fullest_row
from sharding.costs.stages.plan_costs import plan_costs
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from tests.sharding.costs.stages.test_plan_costs import ALL, BATCH, GRAPH
from tests.sharding.planners.problems import AUDIO, BACKBONE
from tests.unit_plans import flat_unit

# Two microbatches of one row: three images of 64 patches; and none.
IMAGES = np.array([[192.0, 3 * 64.0**2, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]])


def test_items_differ_by_one_at_most_and_fractions_are_kept():
    for items, parts, each in (([7.0, 2.0], 3, [[3, 2, 2], [1, 1, 0]]), ([6.75], 2, [[3.75, 3.0]])):
        shares = dealt_shares(np.array(items), parts)
        np.testing.assert_allclose(np.take_along_axis(shares.items, shares.kind, axis=1), each)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(1, 12), st.sampled_from([0.0, 0.25, 0.5]))
def test_the_kinds_of_shares_are_the_kinds_that_shares_have(items, parts, fraction):
    dealt = dealt_shares(np.array(items, float) + fraction, parts)
    each = np.take_along_axis(dealt.items, dealt.kind, axis=1)
    np.testing.assert_allclose(each.sum(axis=1), np.array(items) + fraction)
    for of_kinds, of_shares in zip(dealt.items, each, strict=True):
        assert set(of_kinds) == set(of_shares) and np.ptp(of_shares) <= 1
        assert (np.diff(of_shares) <= 0).all()


@pytest.mark.parametrize("capacities, computed", [((128,), 128), ((100, 150, 400), 150)])
def test_replicas_compute_the_smallest_capacity_that_holds_a_microbatch(capacities, computed):
    loads = executed_loads(IMAGES, OwnRows(2, capacities), 2, GRAPH["vision"])
    np.testing.assert_allclose(loads[0, :2], [computed, 64 * computed])  # padding counts like images of 64 patches
    assert not loads[1].any()


def test_without_capacities_replicas_compute_the_items_alone():
    of_sizes, kind = dealt_loads(IMAGES, 2)
    loads = np.take_along_axis(of_sizes, kind[:, :, None], axis=1)
    np.testing.assert_allclose(loads[0, :, 0], (128, 64))
    np.testing.assert_allclose(loads[0, :, 1], 64 * np.array((128, 64)))
    assert not loads[1].any()


def test_several_rows_a_replica_and_items_that_fit_nowhere():
    module = GRAPH["vision"]
    np.testing.assert_allclose(fullest_row(IMAGES, 4, module), [64, 0])
    loads = executed_loads(IMAGES, OwnRows(4, (80,)), 2, module)
    np.testing.assert_allclose(loads[0, 0], 160)
    np.testing.assert_allclose(executed_loads(IMAGES, OwnRows(2, (80,)), 2, module)[0, 0], 128)


def test_capacities_are_counted_in_frames_and_in_target_images():
    graph = module_graph(ModelConfig((AUDIO,), BACKBONE, ()))
    np.testing.assert_allclose(fullest_row(IMAGES, 2, graph["audio"]), [256, 0])  # two frames a position
    assert graph["audio"].values_per_slot == 2 * AUDIO.merge
    drawn = np.array([[0.0, 0.0, 5.0, 0.0]])
    np.testing.assert_allclose(executed_loads(drawn, OwnRows(2, (2, 4)), 2, GRAPH["generator"])[0, 2], 4)


def plan(dp: int = 3, **row_fields) -> Plan:
    units = (
        flat_unit("vision", ("vision",), tuple(range(dp)), layers=(3,), **row_fields, parallelism=Parallelism(dp=dp)),
        UnitPlan("backbone", ("backbone",), (3,), layers=(4,)),
        UnitPlan("generator", ("generator",), (4,)),
    )
    return Plan(units, 2)


def test_padding_takes_time_and_memory_but_no_useful_flops():
    whole, alone, padded, larger = (
        plan_costs(ResolvedPlan(given, BATCH.graph, ALL), BATCH)
        for given in (
            plan(1),
            plan(phase_rows=3),
            plan(phase_rows=3, capacities=(64, 256)),
            plan(phase_rows=3, capacities=(256,)),
        )
    )
    assert padded.flops == larger.flops == pytest.approx(whole.flops) and alone.flops == pytest.approx(whole.flops)
    alone, padded, larger = (costs.stages["vision", 0] for costs in (alone, padded, larger))
    np.testing.assert_allclose(padded.forward, alone.forward)  # three images in three rows of 64
    assert (larger.forward > padded.forward).all()
    np.testing.assert_allclose(larger.saved_bytes, 4 * padded.saved_bytes)


def test_both_ends_of_an_exchange_hold_what_is_exchanged():
    whole, separate = (
        plan_costs(ResolvedPlan(given, BATCH.graph, ALL), BATCH).stages for given in (plan(1), plan(1, phase_rows=1))
    )
    tokens = max(BATCH.rows["vision"][:, 0].reshape(2, 2).sum(axis=1))
    for stage in (("vision", 0), ("backbone", 0)):
        more = separate[stage].static_bytes - whole[stage].static_bytes
        assert more == pytest.approx(tokens * GRAPH["vision"].trailing_layers[-1].output_elements.tokens * 2)


def test_there_is_memory_for_a_microbatch_of_the_largest_capacity():
    """In a run one may come that those of this step are all smaller than."""
    small, one = plan(phase_rows=3, capacities=(64,)), plan(phase_rows=3, capacities=(64, 256))
    fits, grows = (
        plan_costs(ResolvedPlan(given, BATCH.graph, ALL), BATCH).stages["vision", 0] for given in (small, one)
    )
    assert fits.saved_bytes.max() == grows.saved_bytes.max()
    extra = grows.static_bytes - fits.static_bytes
    assert extra > 3 * grows.saved_bytes.max() > 0  # four times as large, and so is what is exchanged
