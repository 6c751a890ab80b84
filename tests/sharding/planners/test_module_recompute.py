"""Layers' recomputation with the least seconds, against all ways to give layers policies."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.planners.module_recompute import PolicyNeeds, least_seconds
from sharding.specs.layers.layer import RECOMPUTE_POLICIES

FIGURES = st.integers(0, 40)
NEEDS = st.builds(PolicyNeeds, FIGURES.map(float), FIGURES.map(float), FIGURES.map(float))
MODULES = ("vision", "backbone")


def total(needs, policies, field):
    """What the layers of all modules take by a field of `PolicyNeeds`."""
    return sum(
        getattr(needs[module][policy], field) / len(layers) for module, layers in policies.items() for policy in layers
    )


def fits(needs, policies, rooms):
    return all(
        total(needs, policies, field) <= room + 1e-6
        for field, room in zip(("device_bytes", "host_bytes"), rooms, strict=True)
    )


@given(
    layers=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    names=st.sets(st.sampled_from(RECOMPUTE_POLICIES), min_size=1, max_size=3),
    data=st.data(),
    rooms=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
@settings(max_examples=80, deadline=None)
def test_no_other_policies_that_fit_take_fewer_seconds(layers, names, data, rooms):
    counts = dict(zip(MODULES, layers, strict=True))
    needs = {module: {name: data.draw(NEEDS) for name in sorted(names)} for module in MODULES}
    every = [
        dict(zip(MODULES, policies, strict=True))
        for policies in itertools.product(
            *(itertools.combinations_with_replacement(sorted(names), count) for count in layers)
        )
    ]
    least = min((total(needs, each, "seconds") for each in every if fits(needs, each, rooms)), default=None)
    found = least_seconds(counts, needs, *rooms)
    if least is None:
        assert found is None
        return
    assert found is not None and {module: len(policies) for module, policies in found.items()} == counts
    assert fits(needs, found, rooms)
    assert total(needs, found, "seconds") == pytest.approx(least, rel=2e-3, abs=1e-6)


def test_layers_that_save_most_memory_come_first():
    needs = {"backbone": {"none": PolicyNeeds(1.0, 8e9, 0.0), "full": PolicyNeeds(2.0, 1e9, 0.0)}}
    assert least_seconds({"backbone": 8}, needs, 4.5e9, 0.0) == {"backbone": ("full",) * 4 + ("none",) * 4}
    assert least_seconds({"backbone": 8}, needs, 0.9e9, 0.0) is None


def test_layers_offload_as_far_as_the_host_has_room():
    needs = {
        "backbone": {
            "none": PolicyNeeds(10.0, 80e9, 0.0),
            "offload": PolicyNeeds(11.0, 8e9, 72e9),
            "full": PolicyNeeds(14.0, 4e9, 0.0),
        }
    }
    assert set(least_seconds({"backbone": 8}, needs, 9e9, 1e12)["backbone"]) == {"offload"}
    assert set(least_seconds({"backbone": 8}, needs, 9e9, 0.0)["backbone"]) == {"full"}
    assert least_seconds({"backbone": 8}, needs, 9e9, 36e9)["backbone"].count("offload") == 4
