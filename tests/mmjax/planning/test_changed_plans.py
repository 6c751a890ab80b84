"""Plans that single changes make of policies' plans pass every check that an engine makes of a plan and its batches."""

import dataclasses
import random

import jax
import pytest

from data.data_config import DataConfig
from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import plan_phase_rows
from mmjax.models.model import model_modules
from mmjax.planning.problem import make_problem
from mmjax.training.config import TrainConfig
from mmjax.training.engine.placement import check_host_memory, check_sequence_parallelism
from mmjax.training.row_loads import capacity_row_loads
from sharding.planners.moves.change import Change, UnitChange, changed_plan
from sharding.planners.moves.local_search import CHANGE_KINDS
from sharding.planners.policies.auto import is_trainable, run_policy
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics
from tests.sharding.planners.problems import cluster
from tests.small_vqa import SmallVQA
from tests.tiny_model import TRANSFORMER_GENERATOR, VISION, tiny_model

MODEL = dataclasses.replace(
    tiny_model(vocabulary=48, depth=4, kv_heads=4),
    encoders=(dataclasses.replace(VISION, width=16, heads=4),),
    generators=(TRANSFORMER_GENERATOR,),
)
GRAPH = module_graph(MODEL)
SIZES = ((161, 36), (164, 44))
"""Tokens and patches of a row: two tensor ranks do not divide 161, and four context-parallel ranks not 44."""


def configured(tokens: int, patches: int):
    """A run, its planning problem with rows that are half full on 16 devices, and the spec of its batches."""
    data = DataConfig(rows=8, tokens=tokens, patches=patches, images=3, samples=8)
    config, spec = TrainConfig(dataset=SmallVQA, model=MODEL, data=data), global_batch_spec(data, MODEL)
    loads = {name: 0.5 * of for name, of in capacity_row_loads(spec.arrays, GRAPH).items()}
    problem = make_problem(config, RowLoadStatistics(loads), cluster(1e9), 16)
    return config, dataclasses.replace(problem, chunk_choices=(1, 2)), spec


def check_as_the_engine_does(config, problem, spec, plan):
    resolve_plan(plan, GRAPH, problem.devices, config.data.rows, problem.trained_parts)
    check_host_memory(plan, jax.devices() * 2)
    dealt = plan_phase_rows(plan, MODEL, spec.arrays)
    check_sequence_parallelism(plan, model_modules(MODEL), dealt.batch_spec(spec.arrays), dealt.phases)


def next_plan(problem, plan, generator):
    """The plan with a random change."""
    for kind in generator.sample(CHANGE_KINDS, len(CHANGE_KINDS)):
        changes = list(kind(problem, plan))
        for change in generator.sample(changes, len(changes)):
            try:
                return change, changed_plan(problem, plan, change)
            except PlanError:
                continue
    raise AssertionError("no change gives a plan")


@pytest.mark.parametrize(("tokens", "patches"), SIZES)
def test_changed_plans_can_run_with_the_rows_of_the_data(tokens, patches):
    config, problem, spec = configured(tokens, patches)
    results = [run_policy(problem, policy) for policy in ("disaggregated", "fsdp")]
    starts = [result.plan for result in results if result.simulated and is_trainable(problem, result.plan)]
    generator, checked = random.Random(tokens), 0
    for start in starts * 10:
        plan, words = start, []
        for _ in range(5):
            change, plan = next_plan(problem, plan, generator)
            words.append(change.words)
            try:
                check_as_the_engine_does(config, problem, spec, plan)
            except PlanError as error:
                raise AssertionError(f"{'; '.join(words)}: {error}") from error
            checked += 1
    assert checked == 50 * len(starts) == 100


def with_vision(problem, plan, **parallelism):
    """The plan with other sizes of the encoder, which has a row of its own for each replica."""
    change = UnitChange(phase_rows=parallelism["dp"], parallelism=parallelism)
    return changed_plan(problem, plan, Change("", {"vision": change}))


def test_ranks_divide_the_largest_capacity_too():
    """A row of 44 patches is no multiple of the 8 chunks that four context-parallel ranks take."""
    config, problem, spec = configured(168, 44)
    problem = dataclasses.replace(problem, devices=64)
    plan = run_policy(problem, "disaggregated").plan
    for tp, cp in ((1, 2), (1, 4), (4, 1)):
        changed = with_vision(problem, plan, dp=8, tp=tp, cp=cp)
        check_as_the_engine_does(config, problem, spec, changed)
        assert changed.unit_of("vision").capacities[-1] >= 44


@pytest.mark.parametrize("name", ["sequence_parallel", "ring"])
def test_tensor_ranks_that_do_not_divide_the_positions_keep_all_reduce(name):
    """Of 161 tokens two ranks take no equal share, and of 164 on two context-parallel ranks four take none."""
    for tokens, tp, cp in ((161, 2, 1), (164, 4, 2)):
        _, problem, _ = configured(tokens, 32)
        plan = run_policy(problem, "disaggregated").plan
        sizes = {"dp": 1, "tp": tp, "cp": cp}
        changed = changed_plan(problem, plan, Change("", {"backbone": UnitChange(parallelism=sizes)}))
        assert changed.unit_of("backbone").parallelism.collectives == "all_reduce"
        with pytest.raises(PlanError, match=f"its {tp} tensor ranks do not divide the {tokens // cp} positions"):
            changed_plan(problem, changed, Change("", {"backbone": UnitChange(parallelism={"collectives": name})}))
