"""Tables of papers on cases of a size for tests, and what is published in them."""

import dataclasses

import pytest

from benchmarks.colocated import scheduling, settings
from benchmarks.dispatch.samples import described, draw_step
from benchmarks.dispatch.settings import Megatron, MiniBatches, ModelSetting
from benchmarks.omnibal.settings import Layout
from benchmarks.papers import (
    disttrain,
    disttrain_parts,
    lmms_engine,
    omnibal,
    omnibal_settings,
    optimus,
    orchmllm,
    text_only,
)
from benchmarks.papers.best_plans import BestPlan, BestPlans
from benchmarks.papers.orders import ORDERS, check_orders
from benchmarks.papers.paper_rows import Band, PaperRow, exactly
from configs.clusters import CLUSTERS
from configs.workloads import Workload
from mmjax import cli
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.planners.policies.auto import run_policy
from sharding.planners.problem import PlanningProblem
from tests.benchmarks.colocated.test_colocated import TINY, shortened
from tests.sharding.planners.problems import MODEL, data

SMALLEST = "internvit_6b_llama3_8b"


@pytest.fixture
def plans() -> BestPlans:
    return BestPlans(lambda words: None)


@pytest.fixture(scope="module")
def small() -> PlanningProblem:
    """A small model on devices of which runs are published, so that its steps have ranges."""
    workload = Workload(MODEL, data(), 24)
    return make_problem(workload, workload_statistics(workload), CLUSTERS["a100"], 16)


def published(rows: list[PaperRow]) -> dict[tuple[str, str, str], Band]:
    return {(row.row, row.system, row.quantity): row.published for row in rows if row.published}


def test_a_problem_is_planned_once(small):
    said: list[str] = []
    plans = BestPlans(said.append)
    first, second = (plans.best(small, "the problem", search=False) for _ in range(2))
    assert first is not second and first.simulated is second.simulated
    assert said[0] == "planning the problem" and len(said) == 2
    assert first.words.endswith("; no local search")


def test_disttrains_rows_have_its_published_figures_and_its_order(small, plans):
    steps = disttrain.steps_of(small, 1, "small", plans, search=False)
    rows = [*disttrain.mfu_rows(disttrain.OVERALL, "mllm_72b", "MLLM-72B", steps)]
    rows += [*disttrain.throughput_rows(disttrain.OVER_MEGATRON, "MLLM-72B", steps)]
    rows += [*disttrain.summary_rows({"mllm_72b": steps})]
    assert published(rows) == {
        ("MLLM-72B", "DistTrain", "MFU"): exactly(0.547),
        ("the least of the models", "Megatron-LM", "MFU"): exactly(0.20),
        ("the most of the models", "DistTrain", "throughput over Megatron-LM"): exactly(2.2),
    }
    gain = next(row for row in rows if row.quantity == disttrain.GAIN)
    assert gain.at_layout and gain.best
    assert gain.at_layout.value.most == pytest.approx(
        steps.reordered.tokens_per_second / steps.megatron.tokens_per_second
    )
    assert gain.best.value.most == pytest.approx(steps.best.tokens_per_second / steps.megatron.tokens_per_second)
    assert all(row.at_layout and row.at_layout.range for row in rows)
    frozen = [*disttrain.mfu_rows(disttrain.FROZEN_MFU, "mllm_72b", "MLLM-72B", steps)]
    assert published(frozen) == {}
    (mfu, throughput) = check_orders(ORDERS, rows)
    assert mfu.ours == throughput.ours


def test_parts_of_disttrain_are_simulated_or_timed(small):
    exposed, overlapped = disttrain_parts.overlap_rows("mllm_72b", 8)
    assert exposed.at_layout and overlapped.at_layout
    assert overlapped.at_layout.value.most < exposed.at_layout.value.most
    few, many = (
        {row.system: row.at_layout.value.most for row in disttrain_parts.forward_rows(images, 256) if row.at_layout}
        for images in (8, 16)
    )
    assert few["generator"] < many["generator"] and few["vision"] < many["vision"]
    (row,) = [disttrain_parts.solver_row(112, 240)]
    assert row.published is None and row.at_layout and row.at_layout.kind == "measured"
    assert row.at_layout.range and row.at_layout.range.least <= row.at_layout.value.most <= row.at_layout.range.most


@pytest.mark.processes
def test_preprocessing_is_timed_in_the_trainer_and_over_the_service():
    here, received = disttrain_parts.preprocessing_rows(2, 256)
    assert here.at_layout and received.at_layout
    assert min(here.at_layout.value.least, received.at_layout.value.least) > 0


def test_optimus_rows_have_its_published_figures(plans, monkeypatch):
    monkeypatch.setitem(scheduling.SLICES, 2, 6)
    monkeypatch.setattr(scheduling, "STRONG_CHUNKS", (1,))
    case = shortened(dataclasses.replace(TINY, ranks=settings.MegatronRanks(1, 4, 2, 2)))
    steps = optimus.steps_of(case, "tiny", plans)
    strong = settings.STRONG_SCALING[0]
    rows = [*optimus.step_rows(optimus.STRONG, steps, optimus.strong_published(strong)), optimus.mean_row([steps])]
    assert published(rows) == {
        ("tiny", "Megatron-LM", "seconds of a step"): Band(10.64, 10.75),
        ("tiny", "Megatron-LM balanced", "seconds of a step"): Band(10.31, 10.50),
        ("tiny", "Optimus", "seconds of a step"): Band(8.49, 9.82),
        ("tiny", "Optimus", "throughput over Megatron-LM balanced"): Band(1.06, 1.06),
        ("1 settings", "Optimus", "throughput over Megatron-LM balanced"): exactly(1.203),
    }
    bubbles = [*optimus.bubble_rows(steps)]
    assert {row.row: row.published.most for row in bubbles if row.published} == settings.PAPER_BUBBLES
    assert optimus.memory_row(steps).published == (0.0, 0.12)
    coarse, fine, seconds = optimus.scheduling_rows(case, "tiny")
    assert coarse.at_layout and fine.at_layout and seconds.at_layout
    assert coarse.at_layout.value.most <= fine.at_layout.value.most


def test_optimus_ratios_at_3072_are_those_of_the_abstract():
    largest = settings.STRONG_SCALING[-1]
    assert largest.devices == settings.LARGEST
    assert optimus.strong_published(largest) == {("Optimus", optimus.OVER_BALANCED): Band(1.205, 1.213)}


def test_the_small_model_of_optimus_is_compared_with_alpa_and_fsdp(plans):
    case = shortened(dataclasses.replace(TINY, ranks=None))
    rows = [*optimus.small_rows(case, plans, search=False)]
    assert {row.quantity: row.published for row in rows if row.published} == {
        "throughput over Alpa": exactly(3.09),
        "throughput over PyTorch FSDP": exactly(1.151),
    }


def test_two_encoders_have_no_balanced_baseline(plans):
    case = shortened(dataclasses.replace(TINY, model="vit_11b_vit_5b_gpt_175b"))
    rows = [*optimus.step_rows(optimus.TWO, optimus.steps_of(case, "two", plans))]
    assert [row.system for row in rows] == ["Megatron-LM", "Optimus"]
    assert rows[1].at_layout is None and rows[1].best
    titles = [optimus.two_title(setting) for setting in settings.TWO_ENCODERS]
    assert titles == ["DualEnc(11B, 5B)", "DualEnc(22B, 5B)", "DualEnc(22B, 11B)"]  # table 6


def test_omnibals_rows_have_its_gpu_days(plans):
    source = omnibal.source_of(SMALLEST)
    epochs = omnibal.simulate_epochs(source, Layout(1, 4, 8), omnibal.CLUSTER)
    assert [row.published for row in omnibal.step_rows("8B", epochs)] == [None] * 4
    search = [*omnibal.partition_rows("8B", epochs)]
    days = {row.system: row.at_layout.value.most for row in search if row.at_layout and row.unit == "GPU-days"}
    assert days["search"] <= days["layers"] <= days["parameters"]
    assert days["search"] <= days["profile of groups"] < days["profile of random batches"] < days["parameters"]
    left = [row.at_layout.value.most for row in omnibal.memory_rows("8B", epochs) if row.at_layout]
    assert len(left) == 8 and min(left[:4]) > min(left[4:]) >= 0
    share = omnibal.encoder_share_row("8B", source, epochs)
    assert share.published == exactly(0.40) and share.at_layout and 0.3 < share.at_layout.value.most < 0.7
    assert omnibal.PAPER_GPU_DAYS["internvit_6b_internlm2_20b"] == (61.8, 21.3)
    assert omnibal.PAPER_GPU_DAYS["internvit_6b_yi_34b"] == (75.4, 30.5)


def test_partitions_of_20b_are_in_the_order_of_the_paper():
    name = "internvit_6b_internlm2_20b"
    epochs = omnibal.simulate_epochs(omnibal.source_of(name), omnibal.LAYOUTS[name], omnibal.CLUSTER)
    rows = [*omnibal.partition_rows("20B", epochs)]
    days = {row.system: row.at_layout.value.most for row in rows if row.at_layout and row.unit == "GPU-days"}
    assert days["search"] < days["layers"] < days["profile of random batches"] < days["parameters"]  # table 5


def test_grouped_data_have_no_padding_and_level_devices():
    rows = [*omnibal.data_rows("8B", omnibal.source_of(SMALLEST), Layout(1, 4, 8))]
    figures = {(row.system, row.quantity): row.at_layout.value.most for row in rows if row.at_layout}
    for system in ("random", "sorted", "device-group"):
        assert figures[system, "pad ratio"] > figures["ISF", "pad ratio"] == 0
        assert figures[system, "samples of a batch"] == 4
        assert figures[system, omnibal.GPU_DAYS] > figures["ISF", omnibal.GPU_DAYS]
    assert figures["random", "dist ratio, vision"] > 10 * figures["ISF", "dist ratio, vision"]
    assert published(rows) == {("8B", "ISF", "samples of a batch"): exactly(4.6)}


def test_other_settings_of_omnibal_are_simulated_before_and_after():
    before, after, gain = omnibal_settings.setting_rows(
        "8B", omnibal.source_of(SMALLEST), Layout(1, 4, 8), trainable=("projectors", "vision")
    )
    assert before.at_layout and after.at_layout and gain.at_layout
    ratio = before.at_layout.value.most / after.at_layout.value.most
    assert gain.at_layout.value.most == pytest.approx(ratio)


def test_orchmllms_rows_have_its_published_figures():
    model, mix = described("mllm_10b", 448)
    samples = draw_step(model, mix, 8, 12)
    packed = orchmllm.problem_of_packed(model, mix, 8, 12)
    assert packed.rows % 8 == 0
    simulated = run_policy(packed, "fsdp").simulated
    assert simulated
    best = BestPlan(simulated, "fsdp, 8 devices")
    setting = ModelSetting(448, MiniBatches(12, 8, 6), Megatron(1, 16))
    rows = [*orchmllm.overall_rows("mllm_84b", setting, samples, mix, best)]
    rows.append(orchmllm.most_row([row for row in rows if row.quantity == orchmllm.GAIN]))
    assert published(rows) == {
        ("MLLM-84B", "OrchMLLM", "MFU"): exactly(0.416),
        ("the most of the models", "OrchMLLM", "throughput over Megatron-LM"): exactly(3.1),
    }
    assert all(row.best for row in rows[:-1] if row.system == orchmllm.ORCH)
    assert not any(row.best for row in rows if row.system != orchmllm.ORCH)


def test_fully_sharded_qwen3_vl_8b_is_within_its_range_of_the_bands():
    rows = [*lmms_engine.rows()]
    assert len(rows) == 2
    for row in rows:
        assert row.within and row.at_layout and row.at_layout.range
        range_, value = row.at_layout.range, row.at_layout.value
        assert range_.least < value.least < value.most < range_.most


def test_text_alone_has_the_same_backbone_rows_and_takes_less(small, plans):
    alone = text_only.text_alone(small, MODEL)
    backbone = small.graph.backbone.name
    assert alone.graph.names == (backbone,) and alone.devices == small.devices and alone.rows == small.rows
    assert (alone.data.loads[backbone] == small.data.loads[backbone]).all()
    case = text_only.TextOnlyCase("small", "", lambda: small, search=False)
    ratio, share, multimodal, text = text_only.case_rows(case, small, alone, plans)
    assert ratio.best and share.best and multimodal.best and text.best
    assert 0 < ratio.best.value.most < 1
    assert ratio.best.range and 0 < share.best.value.most < 1


def test_models_of_the_text_only_table_are_described():
    for case in text_only.cases():
        cli.parse_gin((f"models/{case.model}.gin",))
