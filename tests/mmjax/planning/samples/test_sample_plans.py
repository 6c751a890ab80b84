"""A workload of samples from Python and from the command line: its plan names the grouping, and is simulated by it."""

import dataclasses
import io
import json
import pathlib

import jax
import pytest
from rich.console import Console

import mmjax
from configs.common.errors import UserError
from data.data_config import DataConfig
from mmjax.planning import automatic
from mmjax.planning.arguments import ProblemArguments
from mmjax.planning.problem_inputs import read_problem
from mmjax.planning.samples import sample_plans
from mmjax.planning.samples.comparison import AS_PACKED
from mmjax.planning.samples.report import groupings_document, print_groupings
from mmjax.planning.samples.sample_plans import SampleComparison
from mmjax.planning.samples.sources import GROUPINGS
from mmjax.training.config import TrainConfig
from sharding.planners.policies.auto import PolicyResult, run_policy
from sharding.planners.policies.policy_comparison import compare_policies
from sharding.plans.plan import Plan, single_device_plan
from sharding.plans.plan_purpose import NamedConfiguration, PlanPurpose, differences
from sharding.specs.modules import module_graph
from tests.commands import run_command, run_without_jax
from tests.small_vqa import SmallVQA
from tests.tiny_model import tiny_model

ON_24 = {"cluster": "a800", "devices": 24, "policy": "disaggregated"}
RUN = TrainConfig(
    dataset=SmallVQA,
    model=tiny_model(vocabulary=48),
    data=DataConfig(rows=8, tokens=160, patches=32, images=3, samples=8, window=64, grouping="isf"),
)


@pytest.fixture(scope="module")
def compared() -> SampleComparison:
    comparison = mmjax.plan("models/mllm_9b.gin", samples=240, **ON_24)
    assert isinstance(comparison, SampleComparison)
    return comparison


def test_auto_chooses_the_grouping_for_which_the_plan_is_made(compared):
    choice = compared.groupings.choice
    assert compared.rows.grouping == choice.rows.grouping == compared.plan.made_for.configuration.grouping
    assert {one.rows.grouping for one in compared.groupings.simulated} == set(GROUPINGS)
    assert compared.problem.rows == compared.rows.rows == compared.plan.made_for.rows == 24
    assert abs(compared.rows.samples_per_step / 240 - 1) < 1 / 16
    assert compared.problem.data is compared.rows.statistics


def test_a_plan_of_samples_is_simulated_with_the_rows_that_it_was_made_for(compared):
    plan = Plan.from_json(compared.plan.to_json())
    assert mmjax.simulate(plan).step == compared.timeline.step
    chosen = compared.rows.grouping
    other = next(grouping for grouping in GROUPINGS if grouping != chosen)
    elsewhere = read_problem(ProblemArguments(grouping=other), plan.made_for).problem()
    assert plan.made_for and differences(plan.made_for, elsewhere.purpose)[0] == f"grouping {chosen} (here {other})"


def test_the_report_and_the_notebook_show_every_grouping(compared):
    written = io.StringIO()
    print_groupings(compared.groupings, compared.rows, Console(width=200, file=written))
    shown, html = written.getvalue(), compared._repr_html_()
    words = ["first_fit", "isf", "post_balanced", "  rows = 24", f"grouping = '{compared.rows.grouping}'"]
    for word in words:
        assert word in shown and (word in html or "'" in word)
    for one in compared.groupings.simulated:
        assert f"{one.backbone_fill:.1%}" in shown and f"{one.samples_per_second:,.4g}" in shown
        assert f"{one.rows.imbalance['generator']:.2f}" in shown
    document = groupings_document(compared.groupings, compared.rows)
    assert json.loads(json.dumps(document)) == document and len(document["groupings"]) == 6


@pytest.mark.parametrize("grouping", ["first_fit", "auto"])
def test_policies_are_compared_again_only_for_another_grouping(grouping):
    inputs = read_problem(
        ProblemArguments(gin_file=("models/mllm_9b.gin",), devices=24, batch_samples=120, grouping=grouping)
    )
    problems = []

    def compare(problem):
        problems.append(problem)
        return compare_policies(problem, "rigid")

    sampled = sample_plans.plan_samples(inputs, compare)
    assert isinstance(sampled, SampleComparison)
    compared = [problem.configuration.grouping for problem in problems]
    assert compared == list(dict.fromkeys(["first_fit", sampled.groupings.choice.rows.grouping]))
    assert problems[-1] is sampled.problem and sampled.groupings.policy == "rigid"
    assert {one.rows.grouping for one in sampled.groupings.simulated} == set(
        GROUPINGS if grouping == "auto" else compared
    )


def test_each_grouping_has_a_plan_of_its_own(compared):
    """A plan for rows of first-fit has capacities for its fullest rows, and is no measure of other groupings."""
    packed = {one.rows.grouping: one for one in compared.groupings.simulated if one.reordering == AS_PACKED}
    chosen = packed[compared.rows.grouping]
    assert chosen.step_seconds >= compared.timeline.step * 0.9
    assert packed["first_fit"].rows.imbalance["generator"] > 2 * packed["isf"].rows.imbalance["generator"]
    assert packed["first_fit"].samples_per_second < packed["isf"].samples_per_second


def test_a_grouping_without_a_plan_is_left_out_with_its_reason(monkeypatch):
    inputs = read_problem(
        ProblemArguments(gin_file=("models/mllm_9b.gin",), devices=24, batch_samples=120, grouping="auto")
    )

    def plan(problem, policy):
        if problem.configuration.grouping == "isf":
            return PolicyResult(policy, None, "it does not fit")
        return run_policy(problem, policy)

    monkeypatch.setattr(sample_plans, "run_policy", plan)
    sampled = sample_plans.plan_samples(inputs, lambda problem: compare_policies(problem, "rigid"))
    assert isinstance(sampled, SampleComparison)
    assert sampled.groupings.reasons == {"isf": "it does not fit"}
    assert "isf" not in {one.rows.grouping for one in sampled.groupings.simulated}
    assert groupings_document(sampled.groupings, sampled.rows)["without_plan"] == {"isf": "it does not fit"}


def test_a_comparison_that_was_stopped_has_no_groupings():
    inputs = read_problem(ProblemArguments(gin_file=("models/mllm_9b.gin",), devices=24, batch_samples=120))
    stopped = sample_plans.plan_samples(
        inputs, lambda problem: dataclasses.replace(compare_policies(problem, "rigid"), stopped=True)
    )
    assert stopped.stopped and not isinstance(stopped, SampleComparison)


def test_a_run_keeps_its_grouping_unless_another_is_named():
    def rows(**named):
        return mmjax.plan(RUN, cluster="cpu", devices=4, policy="fsdp", **named).problem

    assert rows(samples=48).configuration.grouping == "isf"
    in_rows = rows(grouping="random")
    assert in_rows.configuration.grouping == "random" and in_rows.rows == RUN.data.rows
    assert rows().configuration.grouping == ""


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"samples": 240, "rows": 24}, "--batch_samples=240 and --batch_rows=24: the rows of a step follow from"),
        ({"grouping": "ifs"}, "--grouping=ifs is not one of auto, first_fit, isf, post_balanced; did you mean isf"),
        ({"grouping": "random"}, "--grouping=random is not one of auto, first_fit, isf, post_balanced"),
    ],
)
def test_what_cannot_be_grouped_is_refused(named, message):
    with pytest.raises(UserError, match=message):
        mmjax.plan("models/mllm_9b.gin", **ON_24, **named)


def test_a_simulation_names_its_grouping():
    with pytest.raises(UserError, match="--grouping=auto compares groupings, which mmjax.plan does"):
        read_problem(ProblemArguments(batch_samples=240)).problem()


def test_training_with_another_grouping_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    purpose = PlanPurpose(configuration=NamedConfiguration(grouping="post_balanced"), rows=8)
    plan = dataclasses.replace(single_device_plan(module_graph(RUN.model)), made_for=purpose)
    pathlib.Path("plan.json").write_text(plan.to_json())
    config = dataclasses.replace(RUN, plan="plan.json")
    assert jax.device_count() >= 1
    _, remark, _ = automatic.plan_and_predict(config, tmp_path, "", any_device=True)
    assert remark == "the plan was made for grouping post_balanced (here isf)"
    alike = dataclasses.replace(config, data=dataclasses.replace(RUN.data, grouping="post_balanced"))
    assert automatic.plan_and_predict(alike, tmp_path, "", any_device=True)[1] == ""


@pytest.mark.processes
def test_samples_are_planned_and_simulated_from_the_command_line_without_jax(tmp_path):
    path = tmp_path / "plan.json"
    flags = ("--gin_file=models/mllm_9b.gin", "--devices=24", "--batch_samples=240", "--policy=disaggregated")
    report = json.loads(run_without_jax("mmjax.plan", *flags, f"--output={path}", "--json").stdout)
    samples, made_for = report["samples"], report["plan"]["made_for"]
    assert samples["grouping"] == made_for["configuration"]["grouping"] and samples["rows"] == made_for["rows"]
    simulated = json.loads(run_command("mmjax.simulate", f"--plan={path}", "--json").stdout)
    chosen = next(entry for entry in report["policies"] if entry["policy"] == report["choice"])
    assert simulated["step_seconds"] == chosen["step_seconds"]
