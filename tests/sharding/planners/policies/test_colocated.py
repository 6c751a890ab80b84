"""Plans of encoders and generators copied beside a backbone: on its devices, trainable, and in its idle time."""

import dataclasses

import pytest
from hypothesis import given, settings

from configs.architectures import ModelConfig
from sharding.planners.colocation.backbone_layouts import backbone_layouts, backbone_unit
from sharding.planners.colocation.replicated_layouts import (
    even_layers,
    pipeline_replica_devices,
    replicated_layouts,
    replicated_unit,
)
from sharding.planners.policies import colocated
from sharding.planners.policies.auto import run_policy
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved_plan import resolve_plan
from tests.sharding.planners.problems import AUDIO, BACKBONE, GENERATOR, VISION, build_problem, problem, recipes

TWO_ENCODERS = ModelConfig((VISION, AUDIO), BACKBONE, (GENERATOR,))


@given(recipes())
@settings(max_examples=10, deadline=None)
def test_every_plan_can_be_trained_and_has_all_modules_on_the_backbones_devices(recipe):
    of = build_problem(recipe)
    try:
        plans = colocated.plans(of)
    except PlanError as error:
        assert str(error)
        return
    for plan in plans:
        resolve_plan(plan, of.graph, of.devices, of.rows)
        own = plan.unit_of("backbone")
        assert plan.schedule == "colocated" and own.parallelism.pipeline_replicas == 1
        for unit in plan.units:
            assert set(unit.devices) == set(own.devices) and unit.parallelism.dp == own.parallelism.dp
            assert own.parallelism.tp % unit.parallelism.tp == 0 and own.pp % unit.pp == 0
            assert (
                unit.parallelism.pipeline_replicas
                == own.parallelism.tp // unit.parallelism.tp * (own.pp // unit.pp)
                <= plan.microbatches
            )
            assert (
                len(unit.schedule_hints.forward_seconds)
                == len(unit.schedule_hints.forward_communication)
                == unit.stage_count
            )


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (1, 4)])
def test_copies_fill_the_pipeline_ranks_of_the_backbone(tp, pp):
    of = problem(ModelConfig((VISION,), dataclasses.replace(BACKBONE, kv_heads=4), ()), devices=32, rows=32)
    own = backbone_unit(of, next(each for each in backbone_layouts(of) if (each.tp, each.pp) == (4, 4)))
    devices = pipeline_replica_devices(own, pp, tp)
    assert sorted(devices) == sorted(own.devices) and (own.parallelism.tp, own.pp, own.parallelism.dp) == (4, 4, 2)
    size = tp * own.parallelism.dp
    for stage in range(len(devices) // size):
        of_stage = devices[stage * size : (stage + 1) * size]
        (rank,) = {device // len(own.rank_devices(0)) for device in of_stage}
        assert rank == stage // (pp * own.parallelism.tp // tp) * pp + stage % pp
        for replica in range(own.parallelism.dp):  # a replica's ranks are some of those of the backbone's same replica
            ranks = [own.rank_devices(rank).index(each) for each in of_stage[replica * tp : (replica + 1) * tp]]
            assert {each // own.parallelism.tp for each in ranks} == {replica}


def test_layouts_of_a_module_are_those_that_divide_the_backbones():
    of = problem(TWO_ENCODERS, devices=16, rows=16)
    for backbone in backbone_layouts(of):
        found = replicated_layouts(of, "vision", backbone)
        assert [each.seconds for each in found] == sorted(each.seconds for each in found)
        for each in found:
            assert backbone.tp % each.tp == backbone.pp % each.pp == 0
            assert each.pipeline_replicas == backbone.tp // each.tp * (backbone.pp // each.pp) <= backbone.microbatches
            unit = replicated_unit(of, backbone_unit(of, backbone), each)
            assert len(set(unit.devices)) == backbone.tp * backbone.pp * backbone.dp


def test_layers_of_slices_differ_by_one_at_most():
    assert even_layers(7, 3) == (3, 2, 2) and even_layers(6, 3) == (2, 2, 2)


def test_a_pipeline_with_copies_is_simulated_as_shorter_than_with_encoders_in_its_first_stage():
    of = problem(ModelConfig((VISION,), BACKBONE, ()), devices=8, rows=32, spread=0.0)
    of = dataclasses.replace(of, tensor_sizes=(1,))
    (best, first) = (run_policy(of, name).timeline.step for name in ("colocated", "rigid_first_stage"))
    assert best < first


def test_what_cannot_be_colocated_says_why():
    with pytest.raises(PlanError, match="backbone is the only module"):
        colocated.plans(problem(ModelConfig((), BACKBONE, ())))
    with pytest.raises(PlanError, match="vision is given cp 2; pipeline replicas beside a backbone have no context"):
        colocated.plans(problem(ranks=(("vision", 2, 1),)))
    with pytest.raises(PlanError, match="leaves memory for the weights of all other modules"):
        colocated.plans(problem(memory=1e5))
    with pytest.raises(PlanError, match="on 1 devices no number of replicas of backbone divides the 8 rows"):
        colocated.plans(problem(devices=1, ranks=(("backbone", 1, 2),), experts=4))
