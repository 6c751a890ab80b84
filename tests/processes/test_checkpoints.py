"""1, 3 and 4 processes train, save and evaluate to the same numbers, and each goes on where any other stopped."""

import pickle

import numpy as np
import pytest

from tests.mmjax.training import short_runs as runs
from tests.processes.save_and_resume import TRAINABLE
from tests.sharding.runtime.processes import run_cluster

pytestmark = pytest.mark.processes

DEVICES = {1: (8,), 3: (3, 3, 3), 4: (2,) * 4}
"""By number of processes, the devices of each: with four, most have none of a given unit."""


def run(directory, task: str, processes: int) -> list[dict]:
    run_cluster(
        "tests.processes.save_and_resume",
        DEVICES[processes],
        *(str(processes), task, str(directory)),
        timeout=900,
    )
    return [pickle.loads((directory / f"{task}-{processes}-{rank}.pickle").read_bytes()) for rank in range(processes)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def saved(directory):
    """By number of processes, what each of them saw; the programs are kept for those that resume."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(directory.with_name("programs")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield {processes: run(directory, "save", processes) for processes in DEVICES}


def states(ranks: list[dict], key: object) -> dict[str, np.ndarray]:
    return runs.assembled(*(seen[key]["state"] for seen in ranks))


@pytest.mark.parametrize("name", TRAINABLE)
def test_any_number_of_processes_trains_and_evaluates_to_the_same_numbers(saved, name):
    (alone,) = saved[1]
    expected = states([alone], name)
    for processes, ranks in saved.items():
        for seen in ranks:
            np.testing.assert_allclose(seen[name]["losses"], alone[name]["losses"], rtol=1e-5)
            assert seen[name]["score"] == alone[name]["score"]
            assert seen[name]["score"].targets == alone[name]["score"].targets > 0
            np.testing.assert_allclose(seen[name]["score"].loss, alone[name]["score"].loss, rtol=1e-5)
        actual = states(ranks, name)
        assert actual.keys() == expected.keys(), processes
        for key, array in expected.items():
            np.testing.assert_allclose(actual[key], array, rtol=1e-5, atol=1e-7, err_msg=f"{processes} {key}")


def test_any_number_of_processes_goes_on_from_the_checkpoint_of_any_other(saved, directory):
    losses: dict[str, np.ndarray] = {}
    for processes in DEVICES:
        ranks = run(directory, "resume", processes)
        for name in TRAINABLE:
            for other in DEVICES:
                key = (name, str(other))
                runs.assert_same(states(ranks, key), states(saved[other], name))
                expected = losses.setdefault(name, ranks[0][key]["losses"])
                for seen in ranks:
                    np.testing.assert_allclose(seen[key]["losses"], expected, rtol=1e-5, err_msg=f"{processes} {key}")
