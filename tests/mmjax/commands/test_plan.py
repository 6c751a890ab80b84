"""`python -m mmjax.plan`: a model and a training run, tables and JSON, and what it refuses."""

import io
import json

import pytest
from rich.cells import cell_len
from rich.console import Console

import mmjax
from mmjax.planning.arguments import ProblemArguments
from mmjax.planning.problem_inputs import read_problem
from mmjax.planning.report import layer_remarks, print_comparison
from sharding.planners.policies.policy_comparison import PolicyComparison
from sharding.plans.plan import Plan
from sharding.specs.modules import module_graph
from tests.commands import call_command, run_command, run_without_jax

ON_FOUR_DEVICES = ("--gin_file=tiny.gin", "--cluster=cpu", "--devices=4", "--policy=disaggregated")


@pytest.mark.processes
def test_a_model_is_planned_by_every_policy_without_jax(tmp_path, monkeypatch):
    """In the environment of a process of a run too, as in its pod: joining that run would end it."""
    path = tmp_path / "plan.json"
    for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "MMJAX_START_TIMEOUT"):
        monkeypatch.setenv(name, "2" if name == "JAX_NUM_PROCESSES" else "1")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    wanted = (
        "--gin_file=models/mllm_9b.gin",
        "--devices=24",
        "--batch_rows=24",
        f"--output={path}",
        "--json",
        "--assumptions",
    )
    report = json.loads(run_without_jax("mmjax.plan", *wanted).stdout)
    policies = {entry["policy"]: entry for entry in report["policies"]}
    assert list(policies) == [
        "rigid",
        "rigid_first_stage",
        "ratio",
        "disaggregated",
        "balanced",
        "fsdp",
        "colocated",
        "local_search",
    ]
    searched = policies["local_search"]  # changes need not shorten the best plan
    assert "mfu" in searched or "no change of a plan" in searched["reason"]
    with_plan = [entry for entry in policies.values() if entry is not searched or "mfu" in entry]
    for entry in with_plan:
        assert 0 < entry["mfu"] < 1 and entry["step_seconds"] > 0 and entry["devices"] <= 24
        shares = [cause["share"] for cause in entry["idle"].values()]
        assert abs(sum(shares) + entry["busy"]["share"] - 1) < 1e-6
    best = policies[report["choice"]]
    assert best["step_seconds"] <= min(entry["step_seconds"] for entry in with_plan) * 1.01
    assert all(entry["devices"] < best["devices"] for entry in report["on_fewer_devices"])
    assert Plan.load(path) == Plan.from_json(json.dumps(report["plan"]))
    assumptions = report["assumptions"]
    assert assumptions["choice"] == report["choice"] != assumptions["other"]
    assert all(change["turns_the_choice"] == (change["other"] < change["choice"]) for change in assumptions["changes"])


@pytest.mark.processes
def test_a_training_run_is_planned_on_its_own_source_and_shown_as_tables():
    shown = run_command("mmjax.plan", *ON_FOUR_DEVICES).stdout
    assert "at most 4 devices of cpu" in shown
    for words in ("disaggregated", "Placement of modules", "Share of the simulated step", "Choice: disaggregated"):
        assert words in shown


@pytest.fixture(scope="module")
def comparison() -> PolicyComparison:
    """Plans whose lines are long: a chain of three modules, recomputation per layer, and four capacities."""
    return mmjax.plan("models/mllm_9b.gin", devices=24, rows=24)


@pytest.mark.parametrize("width", [80, 100, 120, 240])
def test_every_heading_and_every_number_of_a_report_is_printed(comparison, width):
    console = Console(width=width, file=io.StringIO())
    print_comparison(comparison, console)
    shown = console.file.getvalue()
    assert "…" not in shown
    assert "Simulated steps of 24 rows on at most 24 devices of" in " ".join(shown.split())
    tables = [line for line in shown.splitlines() if line.startswith(" ")]  # the others are sentences
    assert tables and max(map(cell_len, tables)) <= width
    lines = shown.partition("Placement of modules")[2].partition("The choice")[0].splitlines()
    headings = [line.split() for line in lines if "policy" in line.split()[:1]]
    with_plan = [result for result in comparison.results if result.simulated]
    pipeline_replicas = (
        ["pipelines"]
        if any(unit.parallelism.pipeline_replicas > 1 for result in with_plan for unit in result.plan.units)
        else []
    )
    ranks = ["devices", *pipeline_replicas, "dp", "fsdp", "tp", "pp", "chunks", "layers"]
    assert all(heading[:2] == ["policy", "unit"] for heading in headings)
    expected = [*ranks, "recompute", "rows", "capacities", "memory", "MFU"]
    assert [name for heading in headings for name in heading[2:]] == expected
    assert len(headings) == (1 if width >= 120 else 2)
    cells = [word for line in lines for word in line.split()]
    assert len(with_plan) >= 7
    for result in with_plan:
        assert result.policy in cells
        for unit in result.plan.units:
            parallelism = unit.parallelism
            sizes = (parallelism.pipeline_replicas, parallelism.dp, parallelism.fsdp, parallelism.tp, unit.pp)
            numbers = (f"{len(unit.devices):,}", *map(str, (*sizes, *unit.capacities)))
            words = (*unit.modules, *numbers, f"{result.timeline.mfu_by_unit[unit.name]:.0%}")
            assert set(words) <= set(cells), (unit.name, words)


def test_blocks_that_no_plan_divides_are_said():
    def remarks(model: str) -> list[str]:
        return list(layer_remarks(module_graph(read_problem(ProblemArguments(gin_file=(model,))).config.model)))

    assert remarks("models/llava_1_6_7b.gin") == []
    (said,) = remarks("models/qwen3_vl_8b.gin")
    assert said.startswith("backbone has 36 blocks: the first 3 take features") and "the other 33 count as" in said


@pytest.mark.processes
def test_fixed_ranks_are_taken_and_shown():
    lines = run_command("mmjax.plan", *ON_FOUR_DEVICES, "--cp=backbone:2").stdout.splitlines()
    columns = next(line.split() for line in lines if "unit" in line and "recompute" in line)
    backbone = next(line.split() for line in lines if line.split()[:1] == ["backbone"])
    assert backbone[columns.index("cp") - 1] == "2" and "ep" not in columns


def test_unknown_names_are_refused_with_the_known_ones():
    def refused(*arguments: str) -> str:
        done = call_command("plan", *arguments)
        *progress, error = done.stderr.splitlines()
        assert done.returncode == 2 and all(line.startswith("comparing") for line in progress), done
        return error

    assert "choose from a800, a100, a100_40gb, h100, h800," in refused("--cluster=tpu")
    assert "--cp has 'backbone'; give a module once" in refused("--cp=backbone")
    unknown = refused("--devices=8", "--ep=backbone:8")
    assert "given for backbone: ep 8, but no layer of backbone has experts; leave ep at 1" in unknown
    tiny = ("--gin_file=tiny.gin", "--cluster=cpu", "--devices=8")
    uneven = refused(*tiny, "--cp=backbone:3")
    assert "given for backbone: cp 3 takes two chunks a rank of each row, and 6 chunks do not divide the 256" in uneven
    too_many = refused(*tiny, "--cp=backbone:16")
    assert "it needs 16" in too_many and "inf" not in too_many.replace("infeasible", "")
    assert "--policy=disaggregated plans by one" in refused(*tiny, "--policy=disaggregated", "--assumptions")
    too_small = refused("--policy=disaggregated", "--devices=3", "--batch_rows=4")
    assert "unit backbone" in too_small and "GB more than a800 has" in too_small and "smallest cluster" in too_small
