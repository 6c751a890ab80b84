"""`benchmarks.colocated`: settings of the paper's tables, partitions of its baselines, and rows of every system."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.colocated import megatron, settings
from benchmarks.colocated.alpa import simulate_alpa
from benchmarks.colocated.cases import OptimusCase, case_of
from benchmarks.colocated.measure import bubble_rows, mean_gain_rows, measure_case
from benchmarks.colocated.settings import MegatronRanks, OptimusSetting
from benchmarks.colocated.systems import ALPA, BACKBONE, COLOCATED, MEGATRON, MEGATRON_BALANCED, systems_of
from sharding.planners.stages.exact_partition import partition_by
from sharding.plans.plan_error import PlanError
from sharding.simulation.idle.idle_time import IDLE_CAUSES
from tests.sharding.planners.stages.brute_force import all_partitions

SMALL_BATCH, DEPTHS = 16, (6, 8)  # layers of each encoder and of the backbone
TINY = OptimusSetting(
    experiment="tiny",
    model="vit_3b_gpt_11b",
    devices=8,
    batch=SMALL_BATCH,
    ranks=MegatronRanks(1, 4, 2, 2),
    cluster="a100",
)


def shortened(setting: OptimusSetting) -> OptimusCase:
    """The case of a setting whose modules have few layers."""
    model = case_of(setting).model
    encoders = tuple(dataclasses.replace(encoder, depth=DEPTHS[0]) for encoder in model.encoders)
    backbone = dataclasses.replace(model.backbone, depth=DEPTHS[1])
    return OptimusCase(setting, dataclasses.replace(model, encoders=encoders, backbone=backbone))


@pytest.fixture(scope="module")
def tiny() -> OptimusCase:
    return shortened(TINY)


@pytest.fixture(scope="module")
def tiny_of_two() -> OptimusCase:
    return shortened(dataclasses.replace(TINY, model="vit_11b_vit_5b_gpt_175b"))


@pytest.mark.parametrize("setting", settings.SETTINGS, ids=lambda setting: setting.title)
def test_ranks_are_all_devices_and_microbatches_whole(setting):
    if setting.ranks is None:
        assert setting is settings.SMALL
        return
    dp, pp, tp, _ = setting.ranks
    assert dp * pp * tp == setting.devices
    assert setting.batch % (dp * settings.MICROBATCH) == 0
    assert setting.batch // (dp * settings.MICROBATCH) % pp == 0  # as interleaved schedules need


def test_settings_are_those_of_the_tables():
    weak = [(setting.devices, setting.batch, setting.ranks) for setting in settings.WEAK_SCALING]
    assert weak == [
        (64, 32, (2, 4, 8, 6)),
        (128, 64, (4, 4, 8, 6)),
        (256, 128, (4, 8, 8, 12)),
        (512, 256, (8, 8, 8, 12)),
    ]
    strong = {setting.devices: setting.ranks for setting in settings.STRONG_SCALING}
    assert strong == {1536: (24, 8, 8, 12), 2048: (32, 8, 8, 12), 3072: (48, 8, 8, 12)}
    microbatches = [
        setting.batch // (setting.ranks.dp * settings.MICROBATCH)
        for setting in settings.STRONG_SCALING
        if setting.ranks
    ]
    assert microbatches == [32, 24, 16]


def test_rows_are_alike_and_have_the_same_work_however_many_samples_they_have(tiny):
    for samples in (1, 2, 4):
        problem = tiny.problem_with(samples)
        assert problem.rows * samples == SMALL_BATCH
        for name, load in (("vision", settings.PATCHES), ("backbone", settings.SAMPLE_TOKENS)):
            rows = problem.sampled_rows[name]
            assert (rows == rows[0]).all()
            np.testing.assert_array_equal(rows.sum(axis=0), SMALL_BATCH * np.array([load, load**2, 1.0, 0.0]))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.integers(1, 6))
def test_the_partition_is_that_of_the_papers_recurrence(weights, stages):
    partition = partition_by(np.array(weights, float), stages)
    if stages > len(weights):
        assert partition is None
        return
    assert partition is not None
    slowest = max(sum(part) for part in np.split(np.array(weights), np.cumsum(partition)[:-1]))
    assert slowest == recurrence(weights, len(weights), stages)


def recurrence(weights: list[int], layers: int, stages: int) -> float:
    """F(l, m) of appendix B."""
    if stages == 1:
        return sum(weights[:layers])
    return min(
        max(recurrence(weights, before, stages - 1), sum(weights[before:layers]))
        for before in range(stages - 1, layers)
    )


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_partitions_have_all_layers_and_encoders_in_the_first_stage(tiny, stages):
    problem, (encoder, backbone) = tiny.problem, DEPTHS
    flops = megatron.layer_flops(problem)
    assert len(flops) == encoder + backbone
    sums = {
        counts: max(part.sum() for part in np.split(flops, np.cumsum(counts)[:-1]))
        for counts in all_partitions(len(flops), stages)
    }
    equal = [counts for counts, slowest in sums.items() if slowest <= min(sums.values()) * (1 + 1e-12)]
    assert {megatron.balanced(problem, stages), megatron.balanced_from_first(problem, stages)} <= set(equal)
    assert megatron.balanced(problem, stages)[0] == min(counts[0] for counts in equal)
    assert megatron.balanced_from_first(problem, stages)[-1] == min(counts[-1] for counts in equal)
    with_encoder = {counts: slowest for counts, slowest in sums.items() if counts[0] >= encoder}
    assert sums[megatron.rebalanced(problem, stages)] == pytest.approx(min(with_encoder.values()))
    even = megatron.first_stage(problem, stages)
    backbone_layers = (even[0] - encoder, *even[1:])
    assert sum(backbone_layers) == backbone
    assert max(backbone_layers) - min(backbone_layers) <= 1


def test_flops_of_layers_are_those_of_the_simulated_step(tiny):
    timeline = systems_of(tiny)[MEGATRON](tiny).timeline
    flops = megatron.layer_flops(tiny.problem).sum() * tiny.problem.rows
    assert timeline.mfu * timeline.step * TINY.devices * tiny.problem.costs.peak_flops == pytest.approx(flops)


def test_balanced_refuses_several_encoders_in_one_line(tiny_of_two):
    with pytest.raises(PlanError, match="divides a chain, but 2 encoders are side by side") as error:
        megatron.balanced(tiny_of_two.problem, 4)
    assert "\n" not in str(error.value)
    assert MEGATRON_BALANCED not in systems_of(tiny_of_two)


def test_several_encoders_take_as_long_as_one_after_another(tiny_of_two):
    plan = systems_of(tiny_of_two)[MEGATRON](tiny_of_two).plan
    (unit,) = plan.units
    assert unit.modules == tiny_of_two.problem.graph.names
    assert unit.layers == (2 * DEPTHS[0] + 2, 2, 2, 2)


def test_too_many_stages_and_too_little_memory_are_refused(tiny):
    ranks = MegatronRanks(1, 4, 2, 4)
    with pytest.raises(PlanError, match="the 14 layers are fewer than the 16 virtual stages"):
        megatron.simulate_chain(tiny.problem, ranks, megatron.balanced)
    cluster = dataclasses.replace(tiny.problem.cluster, memory=1e9)
    without_memory = dataclasses.replace(tiny.problem, cluster=cluster)
    with pytest.raises(PlanError, match="does not fit a100 under any recomputation"):
        megatron.simulate_chain(without_memory, ranks._replace(chunks=1), megatron.first_stage)


def test_every_system_has_rows_and_the_backbone_alone_is_the_shortest_of_its_layout(tiny):
    rows = measure_case(tiny)
    assert all(row.keys() == {"name", "value", "goal", "met", "paper"} for row in rows)
    by_name = {row["name"]: row for row in rows}
    assert len(by_name) == len(rows)
    for name in systems_of(tiny):
        assert by_name[f"{TINY.title}, {name}: share of a device's memory"]["met"]
    seconds = {name: by_name[f"{TINY.title}, {name}: seconds of a step"]["value"] for name in systems_of(tiny)}
    megatron_names = [name for name in seconds if name.startswith(MEGATRON)]
    assert all(seconds[BACKBONE] < seconds[name] for name in megatron_names)
    ratio = by_name[f"{TINY.title}, {MEGATRON_BALANCED}: throughput over {MEGATRON}"]
    assert ratio["value"] == seconds[MEGATRON] / seconds[MEGATRON_BALANCED]
    assert ratio["goal"] == 1.0
    assert ratio["met"] == (ratio["value"] >= 1)
    for name in seconds.keys() - {COLOCATED, MEGATRON}:
        ratio = by_name[f"{TINY.title}, {COLOCATED}: throughput over {name}"]
        assert ratio["value"] == seconds[name] / seconds[COLOCATED]
        assert ratio["goal"] is None
    assert by_name[f"{TINY.title}, {COLOCATED}: throughput over {MEGATRON}"]["goal"] is None  # not the strong scaling's
    means = mean_gain_rows(rows, (TINY,))
    assert [row["value"] for row in means] == [
        seconds[system] / seconds[BACKBONE] for system in (MEGATRON, MEGATRON_BALANCED)
    ]


def test_bubbles_are_beside_those_of_table_1(tiny):
    simulated = systems_of(tiny)[MEGATRON](tiny)
    *rows, difference = bubble_rows(tiny, MEGATRON, simulated)
    assert difference["value"] == pytest.approx(sum(abs(row["value"] - row["paper"]) for row in rows))
    assert [row["paper"] for row in rows] == list(settings.PAPER_BUBBLES.values())
    timeline = simulated.timeline
    other = sum(timeline.idle[cause] for cause in IDLE_CAUSES if cause not in settings.PAPER_BUBBLES)
    idle = sum(row["value"] for row in rows) * timeline.step + other
    assert idle + timeline.busy == pytest.approx(timeline.step)


def test_alpa_is_the_best_of_the_layouts_of_one_chain(tiny):
    problem = tiny.problem_with(1).with_devices(4)
    best = simulate_alpa(problem)
    (unit,) = best.plan.units
    assert unit.parallelism.collectives == "all_reduce"
    assert best.plan.schedule == "1f1b"
    assert problem.memory_fraction(best.timeline) <= 1
    without_layout = OptimusCase(dataclasses.replace(TINY, devices=4, ranks=None), tiny.model)
    assert next(iter(systems_of(without_layout))) == ALPA
    assert systems_of(without_layout)[ALPA](without_layout).timeline.step <= best.timeline.step
