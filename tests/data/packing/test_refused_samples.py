"""The pipeline and samples that cannot be used: broken files, and samples larger than a row."""

import dataclasses
import logging

import pytest

from data.datasets.easy_vqa import EasyVQA
from data.errors import BadSampleError, DataError
from data.packing.pipeline import evaluation_batches, training_batches
from data.packing.refusals import Refusal, RefusalLog
from tests.data.first_samples import CONFIG, MODEL, First, ids_of, take


@pytest.fixture(scope="module")
def train():
    return EasyVQA("train")


@pytest.fixture(scope="module")
def held_out():
    return EasyVQA("test")


def write_truncated(source, folder, count):
    """File paths of the source's images, the first `count` cut short."""
    paths = dict(source._image_paths)
    for image_id in source.image_ids[:count]:
        with open(paths[image_id], "rb") as file:
            content = file.read()
        paths[image_id] = folder / f"{image_id}.png"
        paths[image_id].write_bytes(content[: len(content) // 2])
    return paths


def test_corrupt_images_are_skipped_counted_and_logged(held_out, tmp_path, caplog):
    source = First("test", 30, image_paths=write_truncated(held_out, tmp_path, 3))
    with caplog.at_level(logging.WARNING, logger="data"):
        config = dataclasses.replace(CONFIG, max_refused_share=0.1)
        iterator = evaluation_batches(config, MODEL, source, kinds=("vqa", "description"))
        seen = {number for batch in iterator for number in ids_of(batch)}
    assert seen == set(range(60)) - {0, 1, 2, 30, 31, 32}
    assert iterator.counters()["unreadable_samples"] == 6
    broken = [str(tmp_path / f"{number}.png") for number in range(3)]
    assert sorted(record.args[:2] for record in caplog.records) == [
        (kind, where) for kind in ("description", "vqa") for where in broken
    ]
    with pytest.raises(BadSampleError, match=r"0\.png"):
        iterator.load_samples([0])


@pytest.mark.parametrize("threads", [0, 3])
def test_too_many_corrupt_images_stop_the_run_and_are_named(held_out, tmp_path, threads):
    source = First("test", 30, image_paths=write_truncated(held_out, tmp_path, 3))
    config = dataclasses.replace(CONFIG, max_refused_share=0.05, threads=threads)
    iterator = evaluation_batches(config, MODEL, source)
    with pytest.raises(
        DataError, match=r"vqa: 2 of 30 samples cannot be used: 6\.67%, more than DataConfig\.max_refused_share"
    ) as error:
        list(iterator)
    for number in range(2):
        assert f"{number}.png (" in str(error.value)
    iterator.close()


def test_oversized_samples_are_skipped_counted_and_logged(train, caplog):
    config = dataclasses.replace(CONFIG, tokens=128)
    with caplog.at_level(logging.WARNING, logger="data"):
        iterator = training_batches(config, MODEL, train)
        seen = {number for batch in take(iterator, 20) for number in ids_of(batch)}
        iterator.close()
    refused = {int(record.args[1].split()[1]) for record in caplog.records}
    assert iterator.counters()["oversized_samples"] == len(refused) == len(caplog.records) > 0
    assert not refused & seen
    sizes = {sample.id: sample.sizes["tokens"] for sample in iterator.load_samples(refused | seen)}
    assert all(sizes[number] > 128 for number in refused)
    assert all(sizes[number] <= 128 for number in seen)
    assert "tokens where a row holds 128; raise the row's capacity" in caplog.text


def test_oversized_samples_are_an_error_if_configured_and_in_evaluation(train, held_out):
    config = dataclasses.replace(CONFIG, tokens=128, oversized="error")
    message = r"sample \d+ \(vqa\): \d+ tokens where a row holds 128"
    with pytest.raises(DataError, match=message):
        take(training_batches(config, MODEL, train), 20)
    with pytest.raises(DataError, match=message):
        list(evaluation_batches(dataclasses.replace(config, oversized="skip"), MODEL, held_out))


def test_a_kind_without_fitting_samples_is_an_error():
    config = dataclasses.replace(CONFIG, tokens=20, mixture=(("vqa", 1.0),))
    with pytest.raises(
        DataError, match="not one of 20 samples can be used; the last: sample .* tokens where a row holds 20"
    ):
        next(training_batches(config, MODEL, First("train", 20)))


def test_the_limit_names_its_setting():
    log = RefusalLog({"vqa": 2}, 0.25)
    with pytest.raises(
        DataError, match=r"1 of 2 samples .* more than DataConfig\.max_refused_share = 25\.00%; .*: a\.png \(cut\)$"
    ):
        log.add([Refusal("unreadable", "vqa", "a.png", "cut")])


def test_a_kind_of_oversized_samples_only_is_an_error_that_names_the_capacities():
    log = RefusalLog({"vqa": 2, "description": 1}, 0.0)
    log.add([Refusal("oversized", "vqa", "sample 0", "130 tokens where a row holds 128")])
    with pytest.raises(
        DataError,
        match=r"vqa: none of its samples fits into a row; raise DataConfig\.tokens, .*: sample 0 \(130 .*, sample 1 \(",
    ):
        log.add([Refusal("oversized", "vqa", "sample 1", "140 tokens where a row holds 128")])
    assert log.counts() == {"unreadable_samples": 0, "oversized_samples": 2}
