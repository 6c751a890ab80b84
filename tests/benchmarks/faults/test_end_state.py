"""The comparison of end states: it sees a lost sample, a repeated one, another loss, a changed bit."""

import dataclasses

import numpy as np
import pytest

from benchmarks.faults.audited_data import SampleWriter, read_samples
from benchmarks.faults.campaign import RunOutcome
from benchmarks.faults.end_state import EndState, compare, count_samples
from benchmarks.faults.execution import FaultOutcome, RunEnding
from benchmarks.faults.report import describe_run, goal_rows, kind_rows, kind_table
from benchmarks.faults.training_run import IMAGES, ROWS, STEPS
from benchmarks.rows import every_goal_met
from mmjax.training.metrics.interface import RunStart

NONE = frozenset()
ORDER = np.random.default_rng(0).permutation(IMAGES).tolist()
UNDISTURBED = EndState(
    losses={step: {"loss/backbone": 5.0 / step, "gradient_norm": 1.0} for step in range(1, STEPS + 1)},
    samples={step: ORDER[ROWS * (step - 1) : ROWS * step] for step in range(1, STEPS + 1)},
    parameters={"weights": np.arange(6, dtype=np.float32), "zeros": np.zeros(3, np.float32)},
    optimizer={
        "['backbone'][0]['count']": np.int32(STEPS),
        "['backbone'][0]['mu']['kernel']": np.full(3, 1e-2, np.float32),
        "['backbone'][0]['nu']['kernel']": np.full(3, 1e-6, np.float32),
    },
    data={"batches": STEPS},
    refused=NONE,
)


def changed(**fields) -> EndState:
    return dataclasses.replace(UNDISTURBED, **fields)


def test_the_same_end_state_is_equal_bit_for_bit():
    comparison = compare(UNDISTURBED, UNDISTURBED, True, True, NONE)
    assert comparison.equal and comparison.difference == 0 and count_samples(UNDISTURBED.samples) == (0, 0)


@pytest.mark.parametrize(
    ("end_state", "lost", "repeated", "steps"),
    [
        (changed(samples=UNDISTURBED.samples | {3: UNDISTURBED.samples[2]}), ROWS, ROWS, (3,)),
        (changed(samples={s: ids for s, ids in UNDISTURBED.samples.items() if s != 5}), ROWS, 0, (5,)),
        (changed(samples=UNDISTURBED.samples | {5: UNDISTURBED.samples[5][::-1]}), 0, 0, (5,)),
        (changed(losses=UNDISTURBED.losses | {7: UNDISTURBED.losses[7] | {"gradient_norm": 1.0 + 1e-6}}), 0, 0, (7,)),
        (changed(losses={s: losses for s, losses in UNDISTURBED.losses.items() if s < STEPS}), 0, 0, (STEPS,)),
        (changed(data={"batches": STEPS - 1}), 0, 0, ()),
        (changed(parameters=UNDISTURBED.parameters | {"zeros": np.full(3, 1e-7, np.float32)}), 0, 0, ()),
        (changed(refused=frozenset({4})), 0, 0, ()),
        (changed(optimizer=UNDISTURBED.optimizer | {"['backbone'][0]['count']": np.int32(STEPS - 1)}), 0, 0, ()),
        (changed(optimizer={}), 0, 0, ()),
    ],
)
def test_what_differs_is_found(end_state, lost, repeated, steps):
    seen = compare(end_state, UNDISTURBED, True, True, NONE)
    assert not seen.equal
    assert (seen.lost, seen.repeated, seen.differing_steps) == (lost, repeated, steps)


def test_rounding_is_allowed_where_the_plan_changed_and_no_more():
    parameters = UNDISTURBED.parameters
    rounded = changed(parameters=parameters | {"weights": parameters["weights"] * np.float32(1 + 1e-6)})
    assert not compare(rounded, UNDISTURBED, True, True, NONE).equal
    assert compare(rounded, UNDISTURBED, False, True, NONE).equal
    other = changed(parameters=parameters | {"weights": parameters["weights"] * np.float32(1.001)})
    assert not compare(other, UNDISTURBED, False, True, NONE).equal


def test_each_field_of_the_optimizer_state_is_compared_by_its_own_size():
    key = "['backbone'][0]['nu']['kernel']"
    for factor, same in ((1 + 1e-6, True), (1.001, False)):
        optimizer = UNDISTURBED.optimizer | {key: UNDISTURBED.optimizer[key] * np.float32(factor)}
        seen = compare(changed(optimizer=optimizer), UNDISTURBED, False, True, NONE)
        assert seen.equal == same and seen.difference == 0 < seen.optimizer_difference
        assert not compare(changed(optimizer=optimizer), UNDISTURBED, True, True, NONE).equal


def test_a_damaged_image_must_be_refused():
    damaged = frozenset({4})
    assert not compare(UNDISTURBED, UNDISTURBED, True, True, damaged).equal
    assert compare(changed(refused=damaged), UNDISTURBED, True, True, damaged).equal


def test_the_writer_keeps_the_samples_of_kept_steps(tmp_path, monkeypatch):
    loaded = [list(range(10, 20)), list(range(14, 24))]
    for resumed_step, samples in zip((0, 2), loaded, strict=True):
        monkeypatch.setattr("benchmarks.faults.audited_data._loaded", samples)
        writer = SampleWriter(2, RunStart(workdir=tmp_path, resumed_step=resumed_step))
        for step in range(resumed_step + 1, resumed_step + 4):
            writer.write(step, {"loss": 0.0})
            writer.write(step, {"accuracy": 0.0})
        writer.close()
    assert {line["step"]: line["samples"] for line in read_samples(tmp_path)} == {
        step: [8 + 2 * step, 9 + 2 * step] for step in range(1, 6)
    }


def test_the_report_has_the_figures_of_each_kind_and_tells_a_hang():
    fault = FaultOutcome(kind="killed process", phase="saving", what="SIGKILL", detection=0.5, resumption=9.0)
    slow = dataclasses.replace(fault, detection=1.5, resumption=None)
    whole = compare(UNDISTURBED, UNDISTURBED, True, True, NONE)
    good = RunOutcome(
        processes=2, with_producers=False, faults=(fault, slow, fault), ending=RunEnding(), comparison=whole
    )
    assert every_goal_met(goal_rows([good], 3)) and not every_goal_met(goal_rows([good], 4))
    assert kind_table(kind_rows(good.faults)).splitlines()[2] == (
        "| killed process | 3 | 0 | 0.5 (worst 1.5) | 9.0 (worst 9.0) |"
    )
    hung = dataclasses.replace(good, faults=(dataclasses.replace(slow, hang="no restart\nthe last line"),))
    assert [row["name"] for row in goal_rows([hung], 1) if not row["met"]] == ["hangs beyond the bound"]
    assert "HANG: the last line" in describe_run(hung)
    for ended in (
        dataclasses.replace(good, faults=(dataclasses.replace(slow, exit_code=1),)),
        dataclasses.replace(good, ending=RunEnding(exit_code=1)),
    ):
        assert [row["name"] for row in goal_rows([ended], len(ended.faults)) if not row["met"]] == ["launcher gave up"]
        assert "the launcher ended with code 1" in describe_run(ended)
    last_save = dataclasses.replace(good, ending=RunEnding(exit_code=2, failed_last_save=True))
    assert every_goal_met(goal_rows([last_save], 3))
    late = dataclasses.replace(good, ending=RunEnding(hang="the end of the run did not happen"))
    assert [row["name"] for row in goal_rows([late], 3) if not row["met"]] == ["hangs beyond the bound"]
    assert "HANG: the end of the run did not happen" in describe_run(late)
    unfinished = dataclasses.replace(good, comparison=None)
    assert [row["name"] for row in goal_rows([unfinished], 3) if not row["met"]] == ["runs that did not finish"]
