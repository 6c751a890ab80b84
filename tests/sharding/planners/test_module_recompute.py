"""Layers' recomputation with the least seconds, against all ways to give layers policies."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.planners.module_recompute import PolicyNeeds, least_seconds, modelled_bytes
from sharding.specs.layers.layer import RECOMPUTE_POLICIES

FIGURES = st.integers(0, 40)
NEEDS = st.builds(PolicyNeeds, *[FIGURES.map(float)] * 4)
MODULES = ("vision", "backbone")


def total(needs, policies, field):
    """What the layers of all modules take by a field of `PolicyNeeds`."""
    return sum(
        getattr(needs[module][policy], field) / len(layers) for module, layers in policies.items() for policy in layers
    )


def fits(needs, policies, device_room, host_room):
    static = sum(max(needs[module][policy].static_bytes for policy in layers) for module, layers in policies.items())
    held = static + total(needs, policies, "device_bytes")
    assert held == pytest.approx(modelled_bytes(needs, policies))
    return held <= device_room + 1e-6 and total(needs, policies, "host_bytes") <= host_room + 1e-6


def all_policies(counts, names):
    """All policies with at most two of them in each module."""
    for policies in itertools.product(
        *(itertools.combinations_with_replacement(sorted(names), count) for count in counts.values())
    ):
        if max(len(set(of_layers)) for of_layers in policies) <= 2:
            yield dict(zip(MODULES, policies, strict=True))


@given(
    layers=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    names=st.sets(st.sampled_from(RECOMPUTE_POLICIES), min_size=1),
    data=st.data(),
    rooms=st.tuples(st.integers(0, 120), st.integers(0, 60)),
)
@settings(max_examples=150, deadline=None)
def test_no_other_policies_that_fit_take_fewer_seconds(layers, names, data, rooms):
    """With hosts that hold little, as good as if they held one sixteenth less for every module."""
    counts = dict(zip(MODULES, layers, strict=True))
    needs = {module: {name: data.draw(NEEDS) for name in sorted(names)} for module in MODULES}
    for host_room in (math.inf, rooms[1]):
        every = list(all_policies(counts, names))
        least = min(
            (total(needs, each, "seconds") for each in every if fits(needs, each, rooms[0], host_room)), default=None
        )
        found = least_seconds(counts, needs, rooms[0], host_room)
        less = host_room * (1 - len(MODULES) / 16)
        most = min(
            (
                total(needs, each, "seconds")
                for each in all_policies(counts, names)
                if fits(needs, each, rooms[0], less)
            ),
            default=None,
        )
        if found is None:
            assert most is None
            continue
        assert {module: len(policies) for module, policies in found.items()} == counts
        assert fits(needs, found, rooms[0], host_room)
        assert least is not None and least - 1e-6 <= total(needs, found, "seconds")
        assert most is None or total(needs, found, "seconds") <= most + 1e-6


def test_layers_that_save_most_memory_come_first():
    needs = {"backbone": {"none": PolicyNeeds(1.0, 8e9, 0.0, 0.0), "full": PolicyNeeds(2.0, 1e9, 0.0, 0.0)}}
    assert least_seconds({"backbone": 8}, needs, 4.5e9, 0.0) == {"backbone": ("full",) * 4 + ("none",) * 4}
    assert least_seconds({"backbone": 8}, needs, 0.9e9, 0.0) is None


def test_layers_offload_as_far_as_the_host_has_room():
    needs = {
        "backbone": {
            "none": PolicyNeeds(10.0, 80e9, 0.0, 0.0),
            "offload": PolicyNeeds(11.0, 8e9, 72e9, 0.0),
            "full": PolicyNeeds(14.0, 4e9, 0.0, 0.0),
        }
    }
    assert set(least_seconds({"backbone": 8}, needs, 9e9, 1e12)["backbone"]) == {"offload"}
    assert set(least_seconds({"backbone": 8}, needs, 9e9, 0.0)["backbone"]) == {"full"}
    assert least_seconds({"backbone": 8}, needs, 9e9, 36e9)["backbone"].count("offload") == 4


def test_a_policy_whose_layers_need_much_while_they_run_is_not_used_for_a_few_layers():
    needs = {
        "generator": {
            "none": PolicyNeeds(1.0, 8e9, 0.0, 1e9),
            "selective": PolicyNeeds(1.5, 5e9, 0.0, 1e9),
            "full": PolicyNeeds(1.4, 1e9, 0.0, 7e9),
        }
    }
    assert set(least_seconds({"generator": 4}, needs, 6.5e9, 0.0)["generator"]) == {"selective"}
    assert set(least_seconds({"generator": 4}, needs, 8e9, 0.0)["generator"]) == {"none", "selective"}
