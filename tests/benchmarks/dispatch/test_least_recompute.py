"""The choice of the least recomputation that fits, where memory and seconds are known."""

from benchmarks.dispatch.least_recompute import LayerPolicies, SimulatedMemory, least_recompute
from sharding.planners.layouts.placement import make_unit
from sharding.plans.plan import Plan

CHOICES = ("none", "selective", "full")
SECONDS = dict(zip(CHOICES, (3.0, 3.5, 4.0), strict=True))
PLAN = Plan((make_unit(("backbone",), dp=1, tp=1, layers=(8,), recompute="none"),), 1)


def found_with(*memory, workspace=0.0):
    """What is found where layers by each policy take so much memory, and `workspace` once some recompute."""
    bytes_by_policy = dict(zip(CHOICES, memory, strict=True))

    def simulate(policies):
        parts = ((policies.first, policies.share), (policies.recompute, 1 - policies.share))
        seconds, taken = (
            sum(part * amounts[policy] for policy, part in parts) for amounts in (SECONDS, bytes_by_policy)
        )
        recomputes = any(part and policy != "none" for policy, part in parts)
        return SimulatedMemory(PLAN, seconds, taken + workspace * recomputes)

    return least_recompute(CHOICES, simulate)


def test_nothing_recomputes_where_that_fits():
    assert [plan.step for plan in found_with(0.9, 0.5, 0.1).fitting] == [3.0]


def test_mixtures_fill_the_memory():
    uniform, with_none, with_selective = found_with(2.5, 1.5, 0.5).fitting
    assert uniform.step == 4.0
    assert (with_none.step, with_none.memory) == (0.25 * 3 + 0.75 * 4, 1)
    assert (with_selective.step, with_selective.memory) == (0.5 * 3.5 + 0.5 * 4, 1)


def test_what_a_recomputing_layer_needs_is_left_free():
    _, with_none, with_selective = found_with(6.0, 4.0, 0.25, workspace=0.5).fitting
    for plan in (with_none, with_selective):
        assert 0.9 < plan.memory <= 1


def test_where_nothing_fits_the_smallest_is_nearest():
    plans = found_with(4.0, 3.0, 2.0)
    assert not plans.fitting and plans.nearest.memory == 2.0


def test_a_share_is_of_whole_layers():
    assert LayerPolicies("none", "full", 0.3).of_stage(8) == "3 full, 5 none"
    assert LayerPolicies("none", "full", 0.99).of_stage(8) == "full"
    assert LayerPolicies("selective").of_stage(8) == "selective"
