"""Effects on costs: what they refuse, and that each can be switched off alone."""

import dataclasses

import pytest

from configs.clusters import CLUSTERS
from configs.cost_effects import EFFECT_NAMES, CostEffects
from configs.device_generations import AMPERE_EFFECTS, HOPPER_EFFECTS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"throttling": 0.9}, "CostEffects.throttling is 0.9; it must be finite and at least 1"),
        ({"compute_slowdown": float("inf")}, "CostEffects.compute_slowdown is inf"),
        ({"jitter": -0.1}, "CostEffects.jitter is -0.1; it must be finite and not negative"),
        ({"convolution_share": 0.0}, "CostEffects.convolution_share is 0.0; it must be above 0 and at most 1"),
        ({"compute_slowdown": 3.0, "transfer_slowdown": 2.0}, "slower than one after the other"),
    ],
)
def test_values_without_a_meaning_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        CostEffects(**fields)


@pytest.mark.parametrize("effects", [AMPERE_EFFECTS, HOPPER_EFFECTS])
def test_every_effect_is_in_the_generation_and_can_be_switched_off_alone(effects):
    assert effects.without(()) == effects and effects.without(EFFECT_NAMES) == CostEffects()
    changed = [
        {
            field.name
            for field in dataclasses.fields(effects)
            if getattr(one, field.name) != getattr(effects, field.name)
        }
        for one in (effects.without((name,)) for name in EFFECT_NAMES)
    ]
    assert all(changed) and set().union(*changed) == {field.name for field in dataclasses.fields(effects)}
    assert sum(map(len, changed)) == len(dataclasses.fields(effects))  # no field belongs to two effects


def test_a_cluster_without_effects_is_else_the_same():
    cluster = CLUSTERS["h100"]
    bare = cluster.without(EFFECT_NAMES)
    assert bare.generation.effects == CostEffects()
    assert dataclasses.replace(bare, generation=cluster.generation) == cluster
