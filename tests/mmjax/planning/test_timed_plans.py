"""Plans timed by real steps: on the same batches, in turns, the fastest chosen, those that cannot run named."""

import dataclasses
import io
import json
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

import mmjax
from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS, ClusterConfig
from configs.common.errors import UserError
from configs.optimizer import OptimizerConfig
from data.data_config import DataConfig
from mmjax.api.timing import check_arguments
from mmjax.commands.plan import COMMAND
from mmjax.planning.automatic import cluster_of_devices, remark_on_devices
from mmjax.planning.candidate_plans import _apart_from_partition, _best, _changed, _may_be_among, best_candidates
from mmjax.planning.timed_plans import COLUMNS, TimedPlan, TimedPlans, print_timed_plans
from mmjax.training.config import TrainConfig
from mmjax.training.profiling.step_times import StepTimes
from sharding.costs.published_errors import StepRange
from sharding.planners.policies.auto import LOCAL_SEARCH, PLANNING_POLICIES, SPARE_PLANS, is_trainable
from sharding.planners.policies.best_plan import most_economical
from sharding.planners.problem import STEP_SLACK
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from sharding.simulation.timeline import Timeline
from tests.sharding.planners.problems import problem
from tests.small_vqa import SmallVQA
from tests.tiny_model import BACKBONE, VISION
from tests.unit_plans import flat_unit

STEPS = 2

CONFIG = TrainConfig(
    dataset=SmallVQA,
    model=ModelConfig(
        (dataclasses.replace(VISION, depth=1),), dataclasses.replace(BACKBONE, vocabulary=48, depth=1), ()
    ),
    data=DataConfig(rows=8, tokens=160, patches=32, samples=8, mixture=(("vqa", 1.0),)),
    optimizer=OptimizerConfig(learning_rate=0.3, warmup_steps=1),
)


def two_units(**vision) -> Plan:
    units = (
        flat_unit("vision", ("vision",), (0, 1), **vision, parallelism=Parallelism(dp=2)),
        UnitPlan("backbone", ("backbone",), (2, 3), parallelism=Parallelism(tp=2)),
    )
    return Plan(units, microbatches=2)


PLANS = {
    "no device 8": Plan((UnitPlan("all", ("vision", "backbone"), (8,), layers=(2,)),)),
    "small rows": two_units(phase_rows=2, capacities=(4,)),
    "one stage": Plan((UnitPlan("all", ("vision", "backbone"), (0, 1), layers=(2,), parallelism=Parallelism(dp=2)),)),
    "two units": two_units(),
}


@pytest.fixture(scope="module")
def timed() -> TimedPlans:
    return mmjax.time_plans(CONFIG, PLANS, steps=STEPS)


@pytest.mark.runs
def test_every_plan_that_runs_trains_on_the_same_batches(timed):
    times = {plan.name: plan.times for plan in timed.plans}
    one, two = times["one stage"], times["two units"]
    assert len(one.losses) == len(two.losses) == len(one.seconds) == len(two.seconds) == STEPS
    for step in range(STEPS):
        assert one.losses[step] == pytest.approx(two.losses[step], rel=1e-5)
    # Another batch, whose loss before any training differs little, but by more than that of another plan may.
    assert one.losses[0] != pytest.approx(one.losses[1], rel=2e-5)


@pytest.mark.runs
def test_the_fastest_is_first_and_plans_that_cannot_run_are_last_with_the_reason(timed):
    first, second, *failed = timed.plans
    assert {first.name, second.name} == {"one stage", "two units"} and timed.fastest is first
    assert 0 < min(first.times.seconds) <= first.times.median <= second.times.median
    errors = {plan.name: plan.times.error for plan in failed}
    assert "device" in errors["no device 8"] and "capacit" in errors["small rows"]
    assert all("\n" not in error for error in errors.values())
    assert [plan.times.seconds for plan in failed] == [(), ()]
    by_name = {plan.name: plan for plan in timed.plans}
    assert all(0 < by_name[name].simulated < float("inf") for name in ("one stage", "two units", "small rows"))
    assert [PLANS[plan.name] for plan in timed.plans] == [plan.plan for plan in timed.plans]


@pytest.mark.runs
def test_a_table_has_measured_beside_simulated_seconds(timed):
    frame = timed.to_frame()
    assert list(frame["name"]) == [plan.name for plan in timed.plans]
    assert frame["median_seconds"][0] == timed.fastest.times.median
    assert json.loads(json.dumps(timed.document()))["plans"][0]["plan"] == json.loads(timed.fastest.plan.to_json())
    page = timed._repr_html_()
    assert all(f">{name.lstrip('#')}</th>" in page for name in COLUMNS)
    assert "small rows could not run: " in page and "median" not in repr(timed)


def test_the_range_of_a_simulated_step_stands_beside_it_where_there_is_one():
    plain = TimedPlan("mine", two_units(), 1.0, StepTimes(seconds=(1.5,)))
    ranged = dataclasses.replace(plain, name="other", simulated_range=StepRange(0.75, 1.25, 12))
    alone, both = (TimedPlans(plans, "cpu", "cpu") for plans in ((plain,), (ranged, plain)))
    console = Console(width=120, file=io.StringIO())
    print_timed_plans(both, console)
    assert alone.columns == COLUMNS and "range" not in alone._repr_html_()
    assert "0.750 to 1.25 s" in console.file.getvalue() and ">0.750 to 1.25 s</td>" in both._repr_html_()
    assert [entry["simulated_range_seconds"] for entry in both.document()["plans"]] == [(0.75, 1.25), None]
    assert len(both.rows[1]) == len(both.columns)


def test_without_a_plan_that_runs_none_is_chosen():
    failed = TimedPlan("mine", two_units(), 1.0, StepTimes(error="out of memory"))
    with pytest.raises(PlanError, match="none of the 1 plans could run; mine: out of memory"):
        _ = TimedPlans((failed,), "cpu", "cpu").fastest


@pytest.mark.parametrize("policy", ["auto", "balanced", "disaggregated"])
@pytest.mark.parametrize("count", [1, 3])
def test_candidates_are_the_shortest_of_all_that_the_policies_propose(policy, count):
    planning_problem = problem(devices=8)
    policies = tuple(PLANNING_POLICIES) if policy == "auto" else (policy,)
    steps, fitting, of_layouts = set(), [], {}
    for name in policies:
        for plan in (
            *PLANNING_POLICIES[name](planning_problem),
            *SPARE_PLANS.get(name, lambda _: ())(planning_problem),
        ):
            timeline = planning_problem.simulate(plan)
            if is_trainable(planning_problem, plan) and planning_problem.memory_fraction(timeline) <= 1:
                steps.add(timeline.step)
                fitting.append(SimulatedPlan(plan, timeline))
                layout = _apart_from_partition(plan)
                of_layouts[layout] = min(timeline.step, of_layouts.get(layout, timeline.step))
    steps = set(of_layouts.values()) if policy == "auto" else steps  # the best partition of each layout
    candidates = best_candidates(planning_problem, count, policy)
    proposed = [candidate.timeline.step for name, candidate in candidates.items() if name != LOCAL_SEARCH]
    economical = most_economical(fitting)
    expected = sorted(steps)[: len(proposed)]
    if LOCAL_SEARCH not in candidates and all(step < economical.timeline.step for step in expected):
        expected[-1] = economical.timeline.step
    assert proposed == pytest.approx(expected, rel=1e-12)
    assert len(candidates) == min(count, len(steps) + (LOCAL_SEARCH in candidates))
    assert all(candidate.plan.made_for == planning_problem.purpose for candidate in candidates.values())
    assert all(name.partition(" ")[0] in (*policies, LOCAL_SEARCH) for name in candidates)


def test_the_plan_that_a_planner_chooses_is_the_last_candidate_where_it_is_not_among_the_shortest():
    def candidate(devices, step):
        plan = Plan((UnitPlan("all", ("backbone",), tuple(range(devices)), parallelism=Parallelism(dp=devices)),))
        return f"{devices} devices", SimulatedPlan(plan, cast(Timeline, SimpleNamespace(step=step)))

    near, far = 1 + STEP_SLACK / 2, 1 + 2 * STEP_SLACK
    fitting = [candidate(8, 1.0), candidate(7, 1.001), candidate(4, near), candidate(2, far)]
    assert [name for name, _ in _best(fitting, 2)] == ["8 devices", "4 devices"]
    assert [name for name, _ in _best(fitting, 1)] == ["4 devices"]
    assert [name for name, _ in _best(fitting, 3)] == ["8 devices", "7 devices", "4 devices"]
    assert _may_be_among(fitting[:2], 1, near, 4) and not _may_be_among(fitting[:2], 1, near, 8)
    assert not _may_be_among(fitting[:2], 1, far, 2) and _may_be_among(fitting[:2], 3, far, 2)


def test_the_best_candidate_with_changes_is_a_candidate_too():
    planning_problem = problem(devices=14, memory=1.2e7)
    candidates = best_candidates(planning_problem, 3)
    assert LOCAL_SEARCH in candidates and LOCAL_SEARCH not in best_candidates(planning_problem, 3, "disaggregated")
    steps = [candidate.timeline.step for candidate in candidates.values()]
    assert steps == sorted(steps) and candidates[LOCAL_SEARCH].plan.made_for == planning_problem.purpose


def test_changes_that_lead_to_another_candidate_are_none_twice():
    """The best plan of `fsdp` becomes the one that another policy has already."""
    case = problem(devices=8, rows=16)
    candidates = best_candidates(case, 2)
    assert list(candidates) == [LOCAL_SEARCH, "fsdp"]
    start, found = ("fsdp", candidates["fsdp"]), ("mine", candidates[LOCAL_SEARCH])
    assert [simulated.plan for _, simulated in _changed(case, [start])] == [found[1].plan]
    assert not _changed(case, [start, found])


def test_several_partitions_of_the_balanced_policy_are_candidates():
    seen = []
    candidates = best_candidates(problem(devices=8), 3, "balanced", lambda *counts: seen.append(counts))
    assert seen == [(0, 1), (1, 1)]
    assert list(candidates) == ["balanced", "balanced 2", "balanced 3"]
    assert len({(candidate.plan.units, candidate.plan.microbatches) for candidate in candidates.values()}) == 3


def test_where_no_plan_can_be_trained_or_fits_the_error_says_why():
    with pytest.raises(PlanError, match="plan that can be trained; the plan of rigid: unit vision: 8 rows"):
        best_candidates(problem(devices=12), 2, "rigid")
    planning_problem = problem(devices=8)
    small = dataclasses.replace(planning_problem, cluster=dataclasses.replace(planning_problem.cluster, memory=1e3))
    with pytest.raises(PlanError, match="no plan that can be trained fits 8 devices of .*; give more devices, or"):
        best_candidates(small, 2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gin_file=models/mllm_9b.gin"], "describes a workload without data to train on; give a training config"),
        (["--gin_file=tiny.gin", "--devices=9"], "there are 8, fewer than --devices=9; leave --devices out"),
    ],
)
def test_the_command_refuses_what_cannot_be_timed(flags, message):
    with pytest.raises(UserError, match=message):
        COMMAND.prepare(COMMAND.parse(["--timed_plans=2", *flags]))


def planned_cluster(*flags: str) -> ClusterConfig:
    """The cluster that the command plans for when it times plans."""
    _, inputs, _ = COMMAND.prepare(COMMAND.parse(["--timed_plans=2", *flags])).args
    return inputs.cluster


def test_the_command_and_the_function_plan_for_one_cluster_and_say_if_the_devices_are_unknown(monkeypatch):
    assert planned_cluster("--gin_file=tiny.gin") is CLUSTERS["cpu"] and remark_on_devices(CLUSTERS["cpu"]) == ""
    unknown = dataclasses.replace(CLUSTERS["cpu"], device_kinds=(), memory=3e9)
    monkeypatch.setitem(CLUSTERS, "cpu", unknown)
    here = planned_cluster("--gin_file=tiny.gin")
    assert here == cluster_of_devices("cpu") and here.memory == 3e9
    timed = mmjax.time_plans(CONFIG, {"no device 8": PLANS["no device 8"]}, steps=1)
    assert timed.simulated_on == here.name and timed.remarks[0] == timed.document()["remark"] == remark_on_devices(here)
    assert "does not know cpu: simulated steps assume devices with 3.0 GB" in timed._repr_html_()
    assert remark_on_devices(CLUSTERS["h100"]) == ""


def test_a_cluster_that_is_given_or_bound_replaces_that_of_the_devices():
    assert planned_cluster("--gin_file=tiny.gin", "--cluster=h100") is CLUSTERS["h100"]
    bound = planned_cluster("--gin_file=tiny.gin", "--gin_file=hardware/disttrain_a800.gin")
    assert bound.name == "disttrain_a800"


def test_numbers_below_one_are_refused():
    with pytest.raises(UserError, match="time_plans: steps is 0; give at least 1"):
        mmjax.time_plans(CONFIG, PLANS, steps=0)
    with pytest.raises(UserError, match="time_plans: plans is 0"):
        mmjax.time_plans(CONFIG, 0)
    with pytest.raises(UserError, match="nowhere.json cannot be read"):
        mmjax.time_plans(CONFIG, {"mine": "nowhere.json"})


@pytest.mark.parametrize(
    ("config", "plans", "steps", "message"),
    [
        ("tiny.gin", PLANS, 1, r"config is 'tiny.gin'; give a TrainConfig, such as mmjax.load\(file\)"),
        (CONFIG, [two_units()], 1, r"plans is \[Plan.*; give a dict of plans or plan files by name, or a whole number"),
        (CONFIG, True, 1, "plans is True; give a dict"),
        (CONFIG, 2.0, 1, "plans is 2.0; give a dict"),
        (CONFIG, PLANS, 1.5, "steps is 1.5; give a whole number"),
        (CONFIG, {"mine": 3}, 1, "the plan 'mine' is 3; give a Plan or a plan file"),
    ],
)
def test_arguments_of_other_kinds_are_refused_with_what_to_give(config, plans, steps, message):
    with pytest.raises(UserError, match=message) as caught:
        check_arguments(config, plans, steps)
    assert "\n" not in str(caught.value)


def test_a_plan_file_is_taken_where_a_plan_is(tmp_path):
    plan = PLANS["no device 8"]
    plan.save(tmp_path / "plan.json")
    files = {"text": str(tmp_path / "plan.json"), "path": tmp_path / "plan.json"}
    timed = mmjax.time_plans(CONFIG, files, steps=1)
    assert {timed_plan.name: timed_plan.plan for timed_plan in timed.plans} == dict.fromkeys(files, plan)


@pytest.mark.layouts
def test_the_command_writes_the_fastest_of_the_plans_that_it_times(tmp_path, capsys):
    path = tmp_path / "plan.json"
    bindings = ["ModelConfig.generators=()", "DataConfig.mixture=(('vqa', 1.0),)"]
    bindings += ["VisionConfig.depth=1", "BackboneConfig.depth=1", "DataConfig.tokens=192"]
    line = ["--gin_file=tiny.gin", "--devices=1", "--timed_plans=1", "--json", f"--output={path}"]
    assert COMMAND.prepare(COMMAND.parse([*line, *(f"--gin.{binding}" for binding in bindings)]))() == 0
    report = json.loads(capsys.readouterr().out)
    (timed,) = report["timed"]["plans"]
    assert timed["median_seconds"] > 0 and not timed["error"] and report["cluster"] == "cpu"
    assert Plan.load(path) == Plan.from_json(json.dumps(report["plan"])) == Plan.from_json(json.dumps(timed["plan"]))
    simulated = {entry["policy"]: entry["step_seconds"] for entry in report["policies"] if "step_seconds" in entry}
    assert timed["simulated_seconds"] <= simulated[report["choice"]] * (1 + STEP_SLACK)
