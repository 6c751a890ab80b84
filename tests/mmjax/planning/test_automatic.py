"""A run that plans itself: from a profile to a plan that training takes, and the prediction next to the measurement."""

import dataclasses
import json
import pathlib

import jax
import pytest

from data.data_config import DataConfig
from mmjax.planning import automatic
from mmjax.training.config import TrainConfig
from mmjax.training.metrics.metrics_file import METRICS_FILE
from sharding.costs.profiled import ProfileError
from sharding.plans.plan import Plan, single_device_plan
from sharding.plans.plan_purpose import PlanPurpose, module_sizes
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.specs.modules import module_graph
from tests.profiles import synthetic_profile
from tests.small_vqa import SmallVQA
from tests.tiny_model import tiny_model
from tests.unit_plans import module_unit

MODEL = tiny_model(vocabulary=48)
GRAPH = module_graph(MODEL)
CONFIG = TrainConfig(
    dataset=SmallVQA,
    model=MODEL,
    data=DataConfig(rows=8, tokens=160, patches=32, images=3, samples=8),
    plan=automatic.AUTO,
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "given.json"
    path.write_text(synthetic_profile(GRAPH, jax.devices()[0].device_kind).to_json())
    return str(path)


def test_auto_plans_what_can_be_trained_and_predicts_its_step(tmp_path, path):
    plan, remark, prediction = automatic.plan_and_predict(CONFIG, tmp_path, path, any_device=False)
    resolve_plan(plan, GRAPH, jax.device_count(), CONFIG.data.rows)
    assert plan.device_count > 1 and "from this machine's profile" in remark
    assert 0 < prediction.step_seconds <= prediction.work_seconds
    alone = dataclasses.replace(CONFIG, plan="")
    one, _, one_prediction = automatic.plan_and_predict(alone, tmp_path, path, any_device=False)
    assert one == single_device_plan(GRAPH) and prediction.step_seconds < one_prediction.step_seconds


def test_a_profile_that_the_workdir_keeps_is_used_again(tmp_path, path):
    (tmp_path / automatic.PROFILE_FILE).write_text(pathlib.Path(path).read_text())
    assert (
        automatic.plan_and_predict(CONFIG, tmp_path, "", False)[0]
        == automatic.plan_and_predict(CONFIG, tmp_path, path, False)[0]
    )


def test_a_profile_of_other_hardware_is_refused_unless_allowed(tmp_path):
    path = tmp_path / "other.json"
    path.write_text(synthetic_profile(GRAPH, "NVIDIA H100 80GB HBM3").to_json())
    with pytest.raises(ProfileError, match="measured on NVIDIA H100 80GB HBM3, and the device is cpu"):
        automatic.plan_and_predict(CONFIG, tmp_path, str(path), any_device=False)
    assert automatic.plan_and_predict(CONFIG, tmp_path, str(path), any_device=True)[2]


def test_without_a_profile_a_plan_is_not_predicted(tmp_path):
    plan, remark, prediction = automatic.plan_and_predict(dataclasses.replace(CONFIG, plan=""), tmp_path, "", False)
    assert plan == single_device_plan(GRAPH) and remark == "" and prediction is None
    assert automatic.compare_prediction(prediction, tmp_path) is None


def test_a_plan_that_was_made_for_another_step_is_told_so(tmp_path):
    path = tmp_path / "plan.json"
    made_for = PlanPurpose(model=module_sizes(GRAPH), rows=CONFIG.data.rows, cluster="cpu")
    for rows, expected in ((CONFIG.data.rows, ""), (16, "the plan was made for rows 16 (here 8)")):
        plan = dataclasses.replace(single_device_plan(GRAPH), made_for=dataclasses.replace(made_for, rows=rows))
        plan.save(path)
        planned = automatic.plan_and_predict(dataclasses.replace(CONFIG, plan=str(path)), tmp_path, "", False)
        assert planned == (plan, expected, None)


@pytest.mark.parametrize("hops", [None, "rendezvous"])
def test_a_plan_whose_hops_occupy_something_else_here_is_told_so(tmp_path, hops):
    """One process runs it, whose hops occupy no device."""
    units = (module_unit("vision", (0,)), module_unit("backbone", (1,)), module_unit("generator", (2,)))
    made_for = PlanPurpose(cluster="cpu", devices=8, hops=hops)
    Plan(units, made_for=made_for).save(tmp_path / "plan.json")
    config = dataclasses.replace(CONFIG, plan=str(tmp_path / "plan.json"))
    _, remark, _ = automatic.plan_and_predict(config, tmp_path, "", False)
    assert remark == ("the plan was made for hops rendezvous (here asynchronous)" if hops else "")


@pytest.mark.parametrize(("processes", "rendezvous"), [(1, False), (2, True)])
def test_a_step_is_predicted_with_the_hops_of_the_runs_processes(monkeypatch, processes, rendezvous):
    """On eight devices, one node of the cluster, and on sixteen, two of them."""
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    monkeypatch.setattr(automatic, "exchange_texts", lambda phase, text: dict.fromkeys(range(processes), text))
    for devices in (8, 16):
        problem = automatic.problem_from_profile(CONFIG, synthetic_profile(GRAPH, "cpu"), devices)
        assert problem.rendezvous == rendezvous


def test_the_summary_has_the_median_of_the_steps_after_the_first_window(tmp_path):
    lines = [{"step": step, automatic.STEP_SECONDS: seconds} for step, seconds in enumerate((9.0, 0.2, 0.4, 0.3))]
    (tmp_path / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    comparison = automatic.compare_prediction(
        automatic.PredictedStep(0.25, 0.5, synthetic_profile(GRAPH, "cpu")), tmp_path
    )
    assert comparison == {"step_seconds": 0.25, "work_seconds": 0.5, "measured_step_seconds": 0.3}
