"""Training, saving and restoring in real processes that form one cluster."""

import pickle
import re

import numpy as np
import pytest

from mmjax.training.checkpoints.manager import CheckpointManager
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.schedules.named.build import build_schedule
from sharding.simulation.measured.timeline_json import read_timeline
from sharding.specs.modules import module_graph
from tests.mmjax.training import short_runs as runs
from tests.mmjax.training.measured_steps import check_measured
from tests.sharding.runtime.processes import run_cluster

pytestmark = pytest.mark.processes

PROCESSES = 3


def test_several_processes_train_save_and_restore_as_one_does(tmp_path):
    # No stage has devices of all processes, some have devices of one alone, and one device has no stage.
    run_cluster(
        "tests.mmjax.training.train_as_one_of_several",
        (3,) * PROCESSES,
        str(PROCESSES),
        str(tmp_path),
        timeout=300,
    )
    ranks = [pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in range(PROCESSES)]

    alone = runs.engine("spread")
    state, first = runs.run(alone, alone.initial_state(), range(2))
    after_two = runs.assembled(runs.local_arrays(state))
    _, later = runs.run(alone, state, range(2, 5))
    for seen in ranks:
        np.testing.assert_allclose(seen["losses"], [*first, *later], rtol=1e-5)
        np.testing.assert_allclose(seen["again"], later, rtol=1e-5)
        assert seen["data"] == ({"batches": 2}, 2)

    saved, restored = (runs.assembled(*(seen[when] for seen in ranks)) for when in ("saved", "restored"))
    runs.assert_same(saved, restored)
    assert saved.keys() == after_two.keys()
    for name, array in saved.items():
        np.testing.assert_allclose(array, after_two[name], rtol=1e-5, atol=1e-7, err_msg=name)
    # Every value came from a file: vision's are now placed on another process.
    vision = [name for name in saved if "vision/blocks" in name]
    assert vision
    assert all(name in ranks[0]["saved"] and name not in ranks[0]["restored"] for name in vision)

    # One timeline of all devices, the same in all processes; the ops are in order and after what they depend on.
    assert all(seen["timeline"] == ranks[0]["timeline"] for seen in ranks)
    timeline = read_timeline(ranks[0]["timeline"])
    assert timeline.rendezvous and all(timeline.busy_by_unit.values())
    graph = timeline.op_graph
    check_measured(
        timeline,
        build_schedule(
            ResolvedPlan(runs.PLANS["swapped"], module_graph(runs.MODEL)),
            graph.trained_stages,
            graph.tied_stages,
        ),
    )
    skipped = [span for span in timeline.spans if span.op.stage_id[0] == "vision" and span.op.microbatch == 1]
    assert skipped and all((span.end == span.start).all() for span in skipped)
    assert all(seen["capacities"] == {"vision": (1, None), "generator": (0, 0)} for seen in ranks)
    # One process that cannot record keeps no other waiting.
    assert [seen["not_recorded"].startswith("process 1 could not record the step") for seen in ranks] == [True] * 3
    assert "no attribute 'addressable_shards'" in ranks[1]["not_recorded"]

    # All processes name the one that could not write; what it left is gone.
    (said,) = {seen["not_written"] for seen in ranks}
    folder = tmp_path / "checkpoints"
    assert re.fullmatch(
        rf"the checkpoint of step 4 was not written to {folder} by process 1: .*File too large.* of step 2", said
    )
    assert sorted(path.name for path in folder.iterdir()) == ["2", "5"]

    # What process 0 does not see is no part of a checkpoint: nothing gets the name of one.
    assert all(
        re.search(
            r"of step 5 was not written to .* by process 0: process 1 wrote [1-9]\d* files of \d+ bytes of \w+, and "
            r"process 0 sees 0 of 0 bytes: all processes need one workdir",
            seen["not_shared"],
        )
        for seen in ranks
    )
    # All consider the steps that process 0 lists, and nobody restores what the others do not.
    for seen in ranks:
        assert re.fullmatch(
            r"the processes see different checkpoints in .*: process 0 step 5 \(files.json: CRC-32 [0-9a-f]{8}\), "
            r"process 1 step 5 \(files.json: .*\); all processes need one workdir on a shared file system",
            seen["other_checkpoint"],
        )

    # A folder that has nothing gets the copy of the newest.
    assert [seen["fetched"] for seen in ranks] == [{"batches": 5}] * PROCESSES
    for place in ("remote", "elsewhere"):
        assert [path.name for path in (tmp_path / place).iterdir()] == ["5"]

    # One process goes on where several left off.
    checkpoints = CheckpointManager(folder, runs.MODEL)
    state, data, step = checkpoints.restore(alone, 2)
    assert (data, step) == ({"batches": 2}, 2)
    runs.assert_same(saved, runs.assembled(runs.local_arrays(state)))
    checkpoints.close()
