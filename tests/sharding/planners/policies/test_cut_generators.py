"""Generators in pipelines: a diffusion transformer is cut where that is faster, a U-Net never."""

import dataclasses

import numpy as np
import pytest

from configs.architectures import ModelConfig
from sharding.planners.policies import auto
from sharding.specs.modules import ModuleGraph
from tests.sharding.planners.problems import BACKBONE, GENERATOR, MODEL, TRANSFORMER, VISION, problem

LARGE = dataclasses.replace(TRANSFORMER, width=128, ffn=512, rotary_axes=(16, 24, 24))
"""Blocks much larger than the backbone's."""


def uncut(case):
    """The same problem with a generator that cannot be cut."""
    modules = (
        dataclasses.replace(module, divisible=module.divisible and not case.is_generator(module.name))
        for module in case.graph.modules
    )
    return dataclasses.replace(case, graph=ModuleGraph(tuple(modules)))


def stages_of_generator(case, plan):
    """How many stages own layers of the generator."""
    unit = plan.unit_of("generator")
    before = sum(case.graph[name].layer_count for name in unit.modules[:-1])
    ends = np.cumsum(unit.layers)
    return int((ends > before).sum())


@pytest.mark.parametrize("policy, double, devices", [("disaggregated", 6, 16), ("balanced", 4, 10)])
def test_a_diffusion_transformer_has_several_stages_where_that_is_faster(policy, double, devices):
    generator = dataclasses.replace(LARGE, double_layers=double, single_layers=2 * double)
    case = problem(ModelConfig((VISION,), BACKBONE, (generator,)), devices=devices, rows=6, memory=4e7)
    whole = uncut(case)
    best, best_whole = (auto.run_policy(version, policy) for version in (case, whole))
    assert stages_of_generator(case, best.plan) > 1
    assert stages_of_generator(whole, best_whole.plan) == 1
    assert best.timeline.step < best_whole.timeline.step


@pytest.mark.parametrize("policy", ["rigid", "ratio", "disaggregated", "balanced", "fsdp", "colocated"])
def test_a_unet_has_one_stage(policy):
    case = problem(MODEL, devices=8, rows=8)
    assert set(case.module_tables[GENERATOR.name].pp.tolist()) == {1}
    assert stages_of_generator(case, auto.run_policy(case, policy).plan) == 1
