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
from sharding.plans.resolved.resolved_plan import resolve_plan
from tests.sharding.planners.problems import (
    AUDIO,
    BACKBONE,
    GENERATOR,
    VISION,
    build_problem,
    problem,
    recipes,
)

TWO_ENCODERS = ModelConfig((VISION, AUDIO), BACKBONE, (GENERATOR,))


@given(recipes())
@settings(max_examples=10, deadline=None)
def test_every_plan_can_be_trained_and_has_all_modules_on_the_backbones_devices(recipe):
    case = build_problem(recipe)
    try:
        plans = colocated.plans(case)
    except PlanError as error:
        assert str(error)
        return
    for plan in plans:
        resolve_plan(plan, case.graph, case.devices, case.rows)
        backbone = plan.unit_of("backbone")
        assert plan.schedule == "colocated" and backbone.parallelism.pipeline_replicas == 1
        for unit in plan.units:
            assert set(unit.devices) == set(backbone.devices) and unit.parallelism.dp == backbone.parallelism.dp
            assert backbone.parallelism.tp % unit.parallelism.tp == 0 and backbone.pp % unit.pp == 0
            assert (
                unit.parallelism.pipeline_replicas
                == backbone.parallelism.tp // unit.parallelism.tp * (backbone.pp // unit.pp)
                <= plan.microbatches
            )
            assert (
                len(unit.schedule_hints.forward_seconds)
                == len(unit.schedule_hints.forward_communication)
                == unit.stage_count
            )


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (1, 4)])
def test_copies_fill_the_pipeline_ranks_of_the_backbone(tp, pp):
    case = problem(ModelConfig((VISION,), dataclasses.replace(BACKBONE, kv_heads=4), ()), devices=32, rows=32)
    backbone = backbone_unit(
        case, next(layout for layout in backbone_layouts(case) if (layout.tp, layout.pp) == (4, 4))
    )
    devices = pipeline_replica_devices(backbone, pp, tp)
    assert sorted(devices) == sorted(backbone.devices)
    assert (backbone.parallelism.tp, backbone.pp, backbone.parallelism.dp) == (4, 4, 2)
    size = tp * backbone.parallelism.dp
    for stage in range(len(devices) // size):
        stage_devices = devices[stage * size : (stage + 1) * size]
        (rank,) = {device // len(backbone.rank_devices(0)) for device in stage_devices}
        assert rank == stage // (pp * backbone.parallelism.tp // tp) * pp + stage % pp
        # A replica's ranks are some of those of the backbone's same replica.
        for replica in range(backbone.parallelism.dp):
            ranks = [
                backbone.rank_devices(rank).index(device) for device in stage_devices[replica * tp : (replica + 1) * tp]
            ]
            assert {rank // backbone.parallelism.tp for rank in ranks} == {replica}


def test_layouts_of_a_module_are_those_that_divide_the_backbones():
    case = problem(TWO_ENCODERS, devices=16, rows=16)
    for backbone in backbone_layouts(case):
        layouts = replicated_layouts(case, "vision", backbone)
        assert [layout.seconds for layout in layouts] == sorted(layout.seconds for layout in layouts)
        for layout in layouts:
            assert backbone.tp % layout.tp == backbone.pp % layout.pp == 0
            assert (
                layout.pipeline_replicas
                == backbone.tp // layout.tp * (backbone.pp // layout.pp)
                <= backbone.microbatches
            )
            unit = replicated_unit(case, backbone_unit(case, backbone), layout)
            assert len(set(unit.devices)) == backbone.tp * backbone.pp * backbone.dp


def test_layers_of_slices_differ_by_one_at_most():
    assert even_layers(7, 3) == (3, 2, 2) and even_layers(6, 3) == (2, 2, 2)


def test_a_pipeline_with_copies_is_simulated_as_shorter_than_with_encoders_in_its_first_stage():
    case = problem(ModelConfig((VISION,), BACKBONE, ()), devices=8, rows=32, spread=0.0)
    case = dataclasses.replace(case, tensor_sizes=(1,))
    (best, first) = (run_policy(case, name).timeline.step for name in ("colocated", "rigid_first_stage"))
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


def test_nothing_is_simulated_where_another_policy_is_far_shorter(monkeypatch):
    case = problem(devices=8)
    whole = run_policy(case, "colocated")
    simulated = []
    simulate = type(case).simulate
    monkeypatch.setattr(type(case), "simulate", lambda *given: simulated.append(given) or simulate(*given))
    assert run_policy(case, "colocated", whole.timeline.step).timeline.step == whole.timeline.step
    assert simulated
    simulated.clear()
    last = run_policy(case, "colocated", whole.timeline.step / 4)
    assert not simulated and "no step is as short as another policy's" in last.reason
