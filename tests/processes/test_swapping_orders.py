"""Two processes swap the order of ops at the same step, and keep it if they disagree or one of them fails."""

import pickle

import pytest

from tests.sharding.runtime.processes import run_cluster

pytestmark = pytest.mark.processes


def test_processes_swap_together_or_not_at_all(tmp_path):
    run_cluster("tests.processes.swap_orders", (2, 2), str(tmp_path), timeout=400)
    ranks = [pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in range(2)]
    first, second = ranks
    said = first.pop("said")
    assert second.pop("said") == [] and first == second
    swaps, losses, ops = first["with"]
    assert [(swap.step, swap.measured_step, swap.same_sums) for swap in swaps][0] == (3, 2, True)
    assert losses == first["without"][1] and len(losses) == 5
    assert ops != first["without"][2] and sorted(ops) == sorted(first["without"][2])
    assert first["without"][0] == ()
    assert first["disagreeing"] == (None, True)
    assert said[-1].startswith(
        "the order of ops stays as it is: from step 2, 2 processes have computed 2 different ones, 1 of them the same"
    )
    assert first["failing"].startswith(
        "process 1 could not compute the order of ops from step 4: ZeroDivisionError: of this test"
    )
