"""Training, saving and restoring in real processes that form one cluster."""

import pickle

import numpy as np

from tests.mmjax.training import short_runs as runs
from tests.sharding.runtime.processes import run_cluster


def test_two_processes_train_save_and_restore_as_one_does(tmp_path):
    run_cluster("tests.mmjax.training.train_as_one_of_two", (4, 4), str(tmp_path), timeout=300)
    zero, one = (pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in (0, 1))

    alone = runs.engine("spread")
    state, first = runs.run(alone, alone.initial_state(), range(2))
    after_two = runs.assembled(runs.local_arrays(state))
    _, later = runs.run(alone, state, range(2, 5))
    for seen in (zero, one):
        np.testing.assert_allclose(seen["losses"], [*first, *later], rtol=1e-5)
        np.testing.assert_allclose(seen["again"], later, rtol=1e-5)
        assert seen["data"] == ({"batches": 2}, 2)

    saved, restored = (runs.assembled(zero[when], one[when]) for when in ("saved", "restored"))
    runs.assert_same(saved, restored)
    assert saved.keys() == after_two.keys()
    for name, array in saved.items():
        np.testing.assert_allclose(array, after_two[name], rtol=1e-5, atol=1e-7, err_msg=name)
    # Every value came from a file: vision's are now placed on the other process.
    vision = [name for name in saved if "vision/blocks" in name]
    assert vision and all(name in zero["saved"] and name not in zero["restored"] for name in vision)
