"""FLOPs of the model's matmuls in the programs of stages, for rows that are full."""

import numpy as np
import pytest

from data.packing.phases.phase_rows import RowValues
from mmjax.planning.arguments import ProblemArguments
from mmjax.planning.problem_inputs import read_problem
from mmjax.training.dry_run.full_rows import full_microbatch, full_rows
from mmjax.training.dry_run.matmul_flops import model_flops
from sharding.plans.plan import Plan
from sharding.specs.layers.layer import LoadColumn, make_loads
from tests.unit_plans import module_unit

TOKENS, WIDTH, FFN, VOCABULARY = 4096, 4096, 11008, 32000
LAYER = 2 * TOKENS * (4 * WIDTH * WIDTH + 3 * WIDTH * FFN)
HEAD = 2 * TOKENS * WIDTH * VOCABULARY


@pytest.fixture(scope="module")
def problem():
    arguments = ProblemArguments(gin_file=("models/llava_1_6_7b.gin",), cluster="h100", devices=10, batch_rows=16)
    return read_problem(arguments).problem()


def resolved(problem, recompute: str = "none"):
    units = (
        module_unit("vision", (0, 1), layers=(23,), dp=2),
        module_unit("backbone", range(2, 10), layers=(16, 16), dp=2, tp=2, recompute=(recompute,) * 2),
    )
    return problem.resolve(Plan(units, microbatches=8))


LOADS = {"backbone": make_loads(2 * TOKENS, 2 * TOKENS**2, 2), "vision": make_loads(0, 0, 0)}


@pytest.mark.parametrize(("kind", "passes"), [("forward", 1), ("backward", 2), ("dgrad", 1), ("wgrad", 1), ("step", 3)])
def test_a_pass_of_layers_and_head_takes_the_flops_of_their_weights(problem, kind, passes):
    plan = resolved(problem)
    of_head = passes * HEAD + HEAD * (kind in ("backward", "dgrad", "step"))  # the logits run again
    for stage, of_two_ranks in ((0, passes * 16 * LAYER), (1, passes * 16 * LAYER + of_head)):
        assert model_flops(plan, ("backbone", stage), LOADS, kind) == pytest.approx(of_two_ranks / 2, rel=1e-6)


@pytest.mark.parametrize(("recompute", "passes"), [("full", 3), ("selective", 2)])
def test_recomputed_matmuls_count_for_the_backward(problem, recompute, passes):
    flops = model_flops(resolved(problem, recompute), ("backbone", 0), LOADS, "backward")
    assert flops == pytest.approx(passes * 16 * LAYER / 2, rel=1e-6)


VALUES = {"backbone": RowValues("tokens", TOKENS, 1), "vision": RowValues("patches", 5120, 4)}


def test_a_full_microbatch_holds_what_its_rows_can(problem):
    plan = resolved(problem)
    loads = full_microbatch(plan, problem.data, 2, VALUES, {}, 0)
    assert loads["backbone"][LoadColumn.TOKENS] == pytest.approx(2 * TOKENS)
    assert loads["vision"][LoadColumn.TOKENS] == pytest.approx(2 * 5120)
    mean = problem.data.mean_load("vision")
    size = loads["vision"][LoadColumn.TOKENS] / loads["vision"][LoadColumn.ITEMS]
    assert size == pytest.approx(mean[LoadColumn.TOKENS] / mean[LoadColumn.ITEMS]), "items keep their mean size"


def test_full_rows_are_as_many_as_the_rows_of_the_batch(problem):
    rows = full_rows(problem.graph, problem.sampled_rows, VALUES, {})
    assert {name: loads.shape for name, loads in rows.items()} == {
        name: loads.shape for name, loads in problem.sampled_rows.items()
    }
    assert np.allclose(rows["backbone"][:, LoadColumn.TOKENS], TOKENS)
