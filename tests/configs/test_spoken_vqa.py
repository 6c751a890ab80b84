"""spoken_vqa.gin: its plan is as its comment says, and its rows have room for its data set.

Its gradients on four submeshes: python -m mmjax.verify --gin_file=spoken_vqa.gin --shrink, with speech there.
"""

import dataclasses
import functools

import gin
import pytest

from data.datasets.easy_vqa import EasyVQA
from data.datasets.spoken_clips import write_spoken_clips
from data.datasets.spoken_easy_vqa import SpokenEasyVQA
from data.errors import DataError
from data.packing.pipeline import make_sample_index, training_batches
from mmjax import cli
from mmjax.training.config import TrainConfig, find_plan_file
from mmjax.training.verification.layouts.divided_plans import GlobalRows
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.specs.modules import module_graph
from tests.tones import VOICES, tone, write_tones

LONGEST = 33_280  # samples: 208 frames; three questions of one image take at most 3 x 208 in the held-out voices


@functools.cache
def configured() -> TrainConfig:
    cli.parse_gin(("spoken_vqa.gin",))
    try:
        return cli.configured(TrainConfig)
    finally:
        gin.clear_config()


def test_its_plan_gives_each_module_devices_of_its_own():
    config = configured()
    plan = Plan.load(find_plan_file(config.plan))
    resolve_plan(plan, module_graph(config.model), 8, config.data.rows)
    assert [unit.modules for unit in plan.units] == [("vision",), ("audio",), ("backbone",), ("generator",)]
    assert sorted(device for unit in plan.units for device in unit.devices) == list(range(8))
    assert not config.require_plan


def test_its_fully_sharded_plan_deals_the_items_of_any_batch():
    config = configured()
    plan = Plan.load(find_plan_file("plans/spoken_vqa_fully_sharded.json"))
    resolve_plan(plan, module_graph(config.model), 8, config.data.rows)
    assert all(unit.parallelism.fsdp == unit.parallelism.dp > 1 for unit in plan.units) and plan.device_count == 8
    rows = GlobalRows.from_data(config.model, config.data)
    for unit in plan.units:
        if unit.phase_rows:
            (module,) = unit.modules
            assert unit.capacities[-1] == rows.sufficient_capacity(module, plan.microbatches, unit.phase_rows)


def test_a_batch_brings_something_to_every_module(tmp_path):
    config = configured()
    write_tones(tmp_path)
    source = SpokenEasyVQA("train", str(tmp_path), 3)
    batches = training_batches(dataclasses.replace(config.data, window=64), config.model, source)
    try:
        batch = next(batches)
    finally:
        batches.close()
    assert set(batch.arrays) == {"vision", "audio", "backbone", "generator"}
    assert all(real > 0 for real, _ in batch.real_and_capacity.values())


def test_the_longest_sample_fits_a_row(tmp_path):
    """Three questions, each as long as the longest that espeak-ng speaks."""
    config, easy_vqa = configured(), EasyVQA("train")
    questions = sorted({question for question, _ in easy_vqa.questions})
    long = tone("", "", 150).repeat(99)[:LONGEST]
    list(write_spoken_clips(tmp_path, questions, VOICES, [180], lambda *_: long, "tones"))
    source = SpokenEasyVQA("train", str(tmp_path), 3, easy_vqa)
    catalogue = make_sample_index(config.data, config.model, source)
    for kind in ("spoken_vqa", "transcription"):
        sizes = [catalogue.sizes(number) for number in catalogue.ids_of_kind(kind)[:20]]
        assert all(config.data.capacity.excess_reason(size.row_units) is None for size in sizes)
        assert max(size.lengths["frames"] for size in sizes) == (3 if kind == "spoken_vqa" else 1) * 208


def test_missing_speech_is_refused_with_the_command_that_makes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="speech does not exist.*python -m mmjax.synthesize_speech --folder=speech"):
        SpokenEasyVQA("train")
