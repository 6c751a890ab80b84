"""Two processes and modules with rows of their own: each decodes what it computes, and may be unable to read some."""

import pickle

import numpy as np
import pytest

from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import plan_phase_rows
from data.packing.pipeline import training_pipeline
from data.packing.rows.row_planner import PlannerState
from tests.processes.train_on_own_rows import CONFIG, PLAN, STEPS, Counted
from tests.sharding.runtime.processes import run_cluster

pytestmark = pytest.mark.processes


def test_an_image_that_one_process_cannot_read_ends_no_run_and_each_decodes_what_it_computes(tmp_path):
    pipeline = training_pipeline(CONFIG.data, CONFIG.model, Counted(set()))
    phases = plan_phase_rows(PLAN, CONFIG.model, global_batch_spec(CONFIG.data, CONFIG.model).arrays)
    steps = pipeline.steps(PlannerState())
    expected: tuple[set[int], set[int]] = set(), set()
    for _ in range(STEPS):
        plan = next(steps)
        for row, ids in enumerate(plan.rows):  # of each microbatch, a row to each replica of the backbone
            expected[row % 2].update(ids)
        for module, (items, samples) in phases.plan(plan.rows, plan.sizes).items():
            # Each replica of the encoder has a row of a microbatch; the generator is the second process's.
            processes = items[:, 3] % 2 if module == "vision" else np.ones(len(items), int)
            for sample, process in zip(samples.tolist(), processes, strict=True):
                expected[process].add(sample)
    images = pipeline.sample_index.ids_of_kind("vqa")
    # In a row that the first process alone reads, and its image is encoded by the second alone.
    damaged = min(
        number for number in expected[1] - {number for _, number in damaged_rows(pipeline)} if number in images
    )
    run_cluster("tests.processes.train_on_own_rows", (2, 2), str(damaged - images.start), str(tmp_path), timeout=400)
    (losses, decoded, counters, state), (others, also, refused, same) = (
        pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in range(2)
    )
    assert (
        losses == others
        and np.isfinite([[*step_losses.values()] for step_losses in losses]).all()
        and state["planner"] == same["planner"]
    )
    assert (counters["unreadable_samples"], refused["unreadable_samples"]) == (0, 1)
    for process, process_samples in enumerate((decoded, also)):
        kinds = pipeline.sample_index
        assert process_samples == {
            (kinds.kind_of(sample_id), sample_id - kinds.ids_of_kind(kinds.kind_of(sample_id)).start)
            for sample_id in expected[process]
        }


def damaged_rows(pipeline):
    """(step, id) of the samples in rows of the second process's replica of the backbone."""
    steps = pipeline.steps(PlannerState())
    return {(step, number) for step in range(STEPS) for ids in next(steps).rows[1::2] for number in ids}
