"""Published MFU without one setting: what its counting counts, and settings that fit what is published."""

import dataclasses
import pathlib
import re

import pytest

from benchmarks.validation.runs import lmms_engine, veomni
from benchmarks.validation.runs.all_runs import all_bands, all_runs
from benchmarks.validation.runs.qwen_models import QWEN_2_7B, QWEN_2_32B, QWEN_2_72B
from benchmarks.validation.settings.counted_flops import counted_flops
from benchmarks.validation.settings.setting import sequence_load, share_of, simulated_step

BANDS = {band.name: band for band in lmms_engine.bands()}
PAGE = pathlib.Path("benchmarks/results/validation.md")


@pytest.mark.parametrize(
    ("model", "length", "tokens_per_second", "mfu"),
    [
        (QWEN_2_7B, 8192, 6940, 0.3876),
        (QWEN_2_7B, 65536, 3725, 0.4592),
        (QWEN_2_32B, 16384, 1316, 0.3452),
        (QWEN_2_72B, 32768, 592, 0.4105),
    ],
)
def test_counted_flops_give_the_mfu_that_veomni_prints_beside_its_throughput(model, length, tokens_per_second, mfu):
    per_token = counted_flops(model, (length,)) / length
    assert per_token * tokens_per_second / 989e12 == pytest.approx(mfu, rel=0.025)


def test_each_sample_attends_to_itself_alone():
    one, two = counted_flops(QWEN_2_7B, (8192,)), counted_flops(QWEN_2_7B, (4096, 4096))
    assert one - two == 12 * 28 * 3584 * (8192**2 - 2 * 4096**2)


def test_ranks_of_a_sequence_share_its_tokens_and_pairs():
    load = sequence_load(1024)
    assert share_of(load, 4) == (256.0, 1024**2 / 4, 0.25, 0.0)
    divided = next(run for run in veomni.runs() if run.name.endswith("131072 positions over 4 ranks"))
    whole = next(run for run in veomni.runs() if run.name.endswith("131072 positions"))
    assert divided.setting.samples == 4 * whole.setting.samples
    assert simulated_step(divided.setting) == pytest.approx(simulated_step(whole.setting), rel=0.05)


def test_a_band_has_an_inside_and_two_outsides():
    band = BANDS["lmms-engine, Qwen3-VL 8B, pictures, 61440 positions"]
    assert band.outside(0.35) == band.outside(0.3) == band.outside(0.4) == 0
    assert band.outside(0.45) == pytest.approx(0.05) and band.outside(0.28) == pytest.approx(-0.02)


@pytest.mark.parametrize("band", BANDS.values(), ids=BANDS)
def test_assumed_samples_fill_the_row_that_is_published(band):
    positions = int(re.search(r"(\d+) positions", band.name)[1])
    ranks = int(match[1]) if (match := re.search(r"over (\d+) ranks", band.name)) else 1
    for assumed in band.assumed:
        tokens = assumed.setting.loads[-1][0] * ranks
        assert 0.98 * positions <= tokens <= positions
        assert assumed.setting.devices == 32


def test_every_rank_of_a_sequence_computes_the_tower_of_all_pictures():
    (assumed, *_) = BANDS["lmms-engine, Qwen3-VL 8B, video, 51200 positions over 2 ranks"].assumed
    tower, backbone = assumed.setting.loads
    assert tower[0] == 4 * 256 * 49 * 4  # samples, pairs of frames, tokens of each, patches of a token
    assert backbone[0] == 4 * (256 + 256 * 49) / 2


def test_mfu_falls_with_the_work_that_it_does_not_count():
    pictures = BANDS["lmms-engine, Qwen3-VL 8B, pictures, 61440 positions"].assumed
    by_share = sorted(pictures, key=lambda assumed: assumed.setting.loads[0][0])
    shares = [assumed.mfu() for assumed in by_share]
    assert shares == sorted(shares, reverse=True)
    effects = pictures[0].setting.costs.cluster.generation.effects
    assert pictures[0].mfu(dataclasses.replace(effects, throttling=2.0)) < pictures[0].mfu()


def test_the_page_has_every_run_and_every_band():
    page = PAGE.read_text(encoding="utf-8")
    assert f"{len(all_runs())} published runs" in page
    missing = [named.name for named in (*all_runs(), *all_bands()) if f"| {named.name} |" not in page]
    assert not missing
