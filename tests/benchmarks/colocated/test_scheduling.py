"""`benchmarks.colocated.scheduling`: the paper's plan of a small model, what it hides, and its scheduler's seconds."""

import dataclasses

import pytest

from benchmarks.colocated import scheduling, settings
from benchmarks.colocated.cases import OptimusCase
from benchmarks.colocated.settings import MegatronRanks
from benchmarks.rows import paper_row
from tests.benchmarks.colocated.test_colocated import TINY, shortened


@pytest.fixture(scope="module")
def case() -> OptimusCase:
    setting = dataclasses.replace(TINY, ranks=MegatronRanks(1, 4, 2, 2))
    return shortened(setting)


def test_a_copy_of_the_encoder_is_on_the_devices_of_each_pipeline_rank(case):
    plan = scheduling.colocated_plan(case.problem, case.setting, 1)
    encoder, backbone = plan.units
    assert plan.schedule == "colocated"
    assert (encoder.parallelism.pipeline_replicas, encoder.pp, encoder.parallelism.chunks, encoder.parallelism.tp) == (
        4,
        1,
        scheduling.SLICES[1],
        2,
    )
    assert [encoder.devices[pipeline_replica * 2 : pipeline_replica * 2 + 2] for pipeline_replica in range(4)] == [
        backbone.rank_devices(rank) for rank in range(4)
    ]
    assert set(encoder.schedule_hints.replica_of_microbatch) == {0, 1, 2, 3}
    assert case.problem.memory_fraction(case.problem.simulate(plan)) <= 1


def test_shares_are_of_the_encoders_work_and_fine_steps_are_no_longer(case, monkeypatch):
    monkeypatch.setattr(scheduling, "STRONG_CHUNKS", (1,))
    rows = {str(row["name"]): row for row in scheduling.scheduling_rows(case)}
    assert len(rows) == 8
    shares = [row["value"] for name, row in rows.items() if "share" in name]
    assert all(0 <= share <= 1 for share in shares)
    title = "bubbles, 8 devices, 8 microbatches, 1F1B"
    passes = "share of the encoder's work that makes passes no longer"
    assert rows[f"{title}, fine: {passes}"]["value"] >= rows[f"{title}, coarse: {passes}"]["value"]


def test_increases_are_over_the_share_with_the_most_microbatches():
    names = [
        f"bubbles, {devices} devices, {count} microbatches, 1F1B, fine: share of the encoder's work in bubbles"
        for devices, count in (("1,536", 32), ("2,048", 24), ("3,072", 16))
    ]
    rows = [paper_row(name, value) for name, value in zip(names, (0.5, 0.75, 0.25), strict=True)]
    increases = scheduling.increase_rows(rows)
    assert [(row["value"], row["met"]) for row in increases] == [(0.25, True), (-0.25, False)]
    assert scheduling.increase_rows(rows[:2]) == []


def test_the_division_is_as_short_as_the_best_of_all(monkeypatch):
    monkeypatch.setattr(scheduling, "FEW_MICROBATCHES", 4)
    monkeypatch.setattr(scheduling, "FEW_PIPELINE_REPLICAS", 2)
    assert scheduling.enumeration_row()["value"] == pytest.approx(1.0)
    assert settings.STRONG_SCALING[-1].devices == settings.LARGEST
