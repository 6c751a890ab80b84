"""A dry run of a pipeline of LLaVA-1.6-7B with few layers: stages compiled once, memory and FLOPs as planned."""

import functools
import itertools

import pytest

from mmjax.planning.arguments import ProblemArguments
from mmjax.planning.batch_shapes import batch_shapes
from mmjax.planning.problem_inputs import read_problem
from mmjax.training.dry_run.dry_run import DryRun, dry_run
from mmjax.training.dry_run.targets import TARGETS, described_devices, missing_plugin
from sharding.plans.plan import Plan
from sharding.runtime.meshes import node_of
from tests.unit_plans import module_unit

pytestmark = [pytest.mark.aot, pytest.mark.skipif(bool(missing_plugin()), reason=missing_plugin())]

LAYERS = 4
"""Layers of a stage of the backbone, of which there are four."""

PASSES = ("forward", "backward")
ONCE_A_STEP = ("gather", "loss_and_norm", "reduce", "update")


@functools.cache
def compiled() -> DryRun:
    arguments = ProblemArguments(
        gin_file=("models/llava_1_6_7b.gin",),
        gin=(f"llama2_7b/architectures.BackboneConfig.depth = {4 * LAYERS}",),
        cluster="h100",
        devices=9,
        batch_rows=16,
    )
    inputs = read_problem(arguments)
    problem = inputs.problem()
    plan = Plan(
        (
            module_unit("vision", (0,), layers=(23,), recompute=("full",)),
            module_unit(
                "backbone",
                range(1, 9),
                layers=(LAYERS,) * 4,
                tp=2,
                collectives="sequence_parallel",
                recompute=("selective",) * 4,
            ),
        ),
        microbatches=16,
    )
    config = inputs.config
    return dry_run(problem, plan, config.model, batch_shapes(config, problem), "h100", config.optimizer)


def test_the_stages_in_the_middle_are_compiled_once():
    kinds = [*PASSES, *ONCE_A_STEP]
    stages = {"vision_stage0": 1, "backbone_stage0": 1, "backbone_stage1": 2, "backbone_stage3": 1}
    assert {program.name: program.stands_for for program in compiled().programs} == {
        f"{stage}_{kind}": count for (stage, count), kind in itertools.product(stages.items(), kinds)
    }


def test_programs_of_the_backbone_compute_the_matmuls_of_the_model():
    of_backbone = [
        program for program in compiled().programs if program.name.startswith("backbone") and program.model_flops
    ]
    assert len(of_backbone) == 6
    for program in of_backbone:
        assert program.flops_ratio == pytest.approx(1, rel=1e-3), program.name


def test_planners_count_the_memory_of_full_rows_to_a_tenth():
    for memory in compiled().memory[1:]:
        assert abs(memory.error_full) < 0.1, memory
        assert memory.spare_bytes > 0


def test_the_first_stage_of_four_holds_four_microbatches():
    saved = [memory.compiled["saved"] for memory in compiled().memory[1:]]
    assert saved[1] / saved[2] == pytest.approx(3 / 2), (
        "alike stages, of which the second holds three and the third two"
    )


def test_collectives_of_tensor_ranks_are_listed_with_what_covers_them():
    (forward,) = (program for program in compiled().programs if program.name == "backbone_stage1_forward")
    kinds = {collective.kind: times for collective, times in forward.figures.collectives}
    assert kinds["all-gather"] == kinds["reduce-scatter"] == LAYERS
    assert 0 < forward.figures.exposed_bytes <= forward.figures.exchanged_bytes


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_nodes_of_devices(target):
    devices = described_devices(target, 12, 8)
    assert [node_of(device) for device in devices] == [0] * 8 + [1] * 4
    assert len({device.device_kind for device in devices}) == 1
