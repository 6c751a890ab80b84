"""Items dealt from planned sizes: as from the arrays of the whole batch, whatever a process needs or cannot read."""

import dataclasses

import numpy as np
import pytest

from configs.architectures import ModelConfig
from data.datasets.dataset import SampleIndex
from data.errors import BadSampleError
from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import NO_PHASES, plan_phase_rows
from data.packing.phases.needed_rows import ALL_ROWS, NeededRows
from data.packing.pipeline import training_pipeline
from data.packing.rows.row_planner import PlannerState
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.data.first_samples import CONFIG
from tests.small_vqa import SmallVQA

MODEL = ModelConfig()
PLAN = Plan(
    (
        UnitPlan("vision", ("vision",), (0, 1, 2), layers=(2,), phase_rows=3, parallelism=Parallelism(dp=3)),
        UnitPlan("generator", ("generator",), (3, 4), phase_rows=6, capacities=(1, 2), parallelism=Parallelism(dp=2)),
        UnitPlan("backbone", ("backbone",), (5, 6), parallelism=Parallelism(dp=2)),
    ),
    microbatches=2,
)
PHASES = plan_phase_rows(PLAN, MODEL, global_batch_spec(CONFIG, MODEL).arrays)
NEEDED = NeededRows((0, 2), {"vision": (1, 4), "generator": ()})
"""Of a process that has one of two replicas of the backbone, one of three of the encoder and none of the generator."""


@pytest.fixture(scope="module")
def pipeline():
    return training_pipeline(CONFIG, MODEL, SmallVQA("train"))


@pytest.fixture(scope="module")
def plans(pipeline):
    steps = pipeline.steps(PlannerState())
    return [next(steps) for _ in range(4)]


def load(pipeline, plan, needed=ALL_ROWS, phases=PHASES, damaged=()):
    """The batch of a step, and the ids of the samples that were decoded for it."""
    asked = []

    class Index(SampleIndex):
        def __init__(self):
            vars(self).update(vars(pipeline.sample_index))

        def load(self, sample_id):
            asked.append(sample_id)
            if sample_id in damaged:
                raise BadSampleError(f"{sample_id}", "damaged")
            return super().load(sample_id)

    loader = dataclasses.replace(pipeline.loader, sample_index=Index(), needed=needed, phases=phases)
    return loader(plan), asked


def leaves(batch):
    return {(module, name): array for module, fields in batch.arrays.items() for name, array in fields.items()}


def tables(batch):
    return {key: array for key, array in leaves(batch).items() if key[1] in ("items", "layout")}


def test_items_lie_where_dealing_the_arrays_of_the_whole_batch_puts_them(pipeline, plans):
    for plan in plans:
        whole, _ = load(pipeline, plan, phases=NO_PHASES)
        expected, (planned, _) = PHASES.deal(whole.arrays), load(pipeline, plan)
        assert planned.arrays.keys() == expected.keys()
        for (module, name), array in leaves(planned).items():
            np.testing.assert_array_equal(array, expected[module][name], err_msg=f"{module} {name}")
        np.testing.assert_array_equal(planned.sample_ids, whole.sample_ids)


def test_a_process_decodes_the_samples_of_its_rows_and_of_its_items_alone(pipeline, plans):
    decoded = spared = 0
    for plan in plans:
        whole, everything = load(pipeline, plan)
        part, asked = load(pipeline, plan, NEEDED)
        # By the arrays of the whole batch, and not by the tables: an encoder's image is that of the sample it is in.
        rows = {int(sample_id) for row in NEEDED.batch for sample_id in whole.sample_ids[row] if sample_id >= 0}
        images = {
            whole.arrays["vision"]["patches"][row][whole.arrays["vision"]["segments"][row] == item].tobytes()
            for row in NEEDED.phases["vision"]
            for item in range(1, whole.arrays["vision"]["segments"][row].max(initial=0) + 1)
        }
        seen = {
            sample_id
            for sample_id in everything
            if len(values := pipeline.sample_index.load(sample_id).encoder_inputs["patches"].values)
            and values.tobytes() in images
        }
        assert sorted(asked) == sorted(rows | seen) and len(images) == len(seen)
        decoded, spared = decoded + len(asked), spared + len(everything) - len(asked)
        needed = {"backbone": NEEDED.batch, "vision": NEEDED.phases["vision"], "generator": ()}
        for (module, name), array in leaves(part).items():
            full = whole.arrays[module][name]
            if module not in needed:
                np.testing.assert_array_equal(array, full)
                continue
            others = sorted({*range(len(full))} - {*needed[module]})
            np.testing.assert_array_equal(array[[*needed[module]]], full[[*needed[module]]])
            assert (array[others] == (-1 if name == "vision_index" else 0)).all(), (module, name)
        np.testing.assert_array_equal(part.sample_ids, whole.sample_ids)
        assert (part.real_and_capacity, part.targets, part.state) == (
            whole.real_and_capacity,
            whole.targets,
            whole.state,
        )
    assert spared > decoded / 3


def test_places_of_a_sample_that_cannot_be_read_stay_empty_and_no_other_moves(pipeline, plans):
    for plan in plans:
        damaged = plan.rows[1][0]
        whole, _ = load(pipeline, plan)
        part, _ = load(pipeline, plan, damaged={damaged})
        assert [refusal.reason for refusal in part.refused] == ["damaged"]
        assert PHASES.digest(part.arrays) == PHASES.digest(whole.arrays)
        assert tables(part).keys() == tables(whole).keys()
        assert (part.sample_ids[1][1:] == whole.sample_ids[1][1:]).all() and part.sample_ids[1][0] == -2
        for module, numbers in (("backbone", "segments"), ("vision", "segments"), ("generator", "weights")):
            there, all_there = part.arrays[module][numbers] != 0, whole.arrays[module][numbers] != 0
            assert not (there & ~all_there).any()
            for name, array in part.arrays[module].items():
                if array.shape[:2] == there.shape:
                    np.testing.assert_array_equal(array[there], whole.arrays[module][name][there], err_msg=name)
        lost = (whole.arrays["backbone"]["segments"] > 0).sum() - (part.arrays["backbone"]["segments"] > 0).sum()
        assert lost == plan.sizes[damaged].tokens
        assert (part.real_and_capacity, part.targets, part.state) == (
            whole.real_and_capacity,
            whole.targets,
            whole.state,
        )
