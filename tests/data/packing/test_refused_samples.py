"""The pipeline and samples that cannot be used: broken files, and samples larger than a row."""

import dataclasses
import json
import logging

import pytest

from data.errors import BadSampleError, DataError
from data.packing.pipeline import evaluation_batches, training_batches, training_pipeline
from data.packing.rows.refusals import Refusal, RefusalLog
from data.producers.client import remote_batches
from data.producers.server import ProducerServer
from tests.data.first_samples import CONFIG, MODEL, VQA, First, Missing, ids_of, take


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
def test_too_many_corrupt_images_stop_the_run_and_all_of_the_window_are_listed(held_out, tmp_path, threads):
    source = First("test", 30, image_paths=write_truncated(held_out, tmp_path, 9))
    config = dataclasses.replace(CONFIG, max_refused_share=0.05, threads=threads)
    iterator = evaluation_batches(config, MODEL, source)
    iterator.list_refused_in(tmp_path / "run")
    message = (
        r"vqa: 9 of 30 samples cannot be used: 30\.00%, more than DataConfig\.max_refused_share = 5\.00%; .* listed in "
    )
    with pytest.raises(DataError, match=message) as error:
        list(iterator)
    assert str(tmp_path / "run" / "unreadable.jsonl") in str(error.value) and "and 4 more" in str(error.value)
    assert keys_listed(tmp_path / "run" / "unreadable.jsonl") == {str(tmp_path / f"{n}.png") for n in range(9)}
    assert not (tmp_path / "run" / "oversized.jsonl").exists()
    iterator.close()


def keys_listed(path):
    return {json.loads(line)["key"] for line in path.read_text().splitlines()}


def list_until_it_stops(iterator, folder):
    iterator.list_refused_in(folder)
    with pytest.raises(DataError, match=r"more than DataConfig\.max_refused_share"):
        take(iterator, 100)
    iterator.close()
    return keys_listed(folder / "unreadable.jsonl")


def test_samples_that_only_decoding_shows_to_be_damaged_are_listed_too(tmp_path):
    source = Missing(60, missing=range(5), damaged=range(20, 40))
    assert list_until_it_stops(training_batches(VQA, MODEL, source), tmp_path) == {
        str(number) for number in [*range(5), *range(20, 40)]
    }


def test_producers_report_all_refusals_of_the_window(tmp_path):
    source = Missing(60, missing=range(5), damaged=range(20, 40))
    expected = list_until_it_stops(training_batches(VQA, MODEL, source), tmp_path / "thread")
    server = ProducerServer(training_pipeline(VQA, MODEL, source), VQA, "127.0.0.1:0")
    try:
        remote = remote_batches(VQA, MODEL, source, (f"127.0.0.1:{server.port}",), timeout=60.0)
        assert list_until_it_stops(remote, tmp_path / "remote") == expected
    finally:
        server.shutdown()


def test_a_window_without_a_usable_sample_is_reported_and_passed_over(tmp_path):
    source = Missing(30, missing=range(10, 20), damaged=())
    config = dataclasses.replace(VQA, rows=1, samples=1, window=5, max_refused_share=0.5)
    iterator = evaluation_batches(config, MODEL, source)
    iterator.list_refused_in(tmp_path)
    seen = [number for batch in iterator for number in ids_of(batch)]
    iterator.close()
    assert sorted(seen) == [*range(10), *range(20, 30)]
    assert iterator.counters()["unreadable_samples"] == 10
    assert keys_listed(tmp_path / "unreadable.jsonl") == {str(number) for number in range(10, 20)}


@pytest.mark.parametrize(("window", "tried"), [(50, 50), (200, 100)])
def test_a_data_set_of_which_nothing_can_be_read_stops_after_one_window_or_a_hundred(tmp_path, window, tried):
    source = Missing(200, missing=range(200), damaged=())
    config = dataclasses.replace(VQA, rows=1, samples=1, window=window)
    assert len(list_until_it_stops(training_batches(config, MODEL, source), tmp_path)) == tried


def test_oversized_samples_are_skipped_counted_and_listed_and_few_are_logged(train, tmp_path, caplog):
    config = dataclasses.replace(CONFIG, tokens=128)
    with caplog.at_level(logging.WARNING, logger="data"):
        iterator = training_batches(config, MODEL, train)
        iterator.list_refused_in(tmp_path)
        seen = {number for batch in take(iterator, 20) for number in ids_of(batch)}
        iterator.close()
    refused = {int(key.split()[1]) for key in keys_listed(tmp_path / "oversized.jsonl")}
    assert iterator.counters()["oversized_samples"] == len(refused) > 40 > 12 > len(caplog.records)
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


def test_the_limit_names_its_setting():
    log = RefusalLog({"vqa": 2}, 0.25)
    log.add([Refusal("unreadable", "vqa", "a.png", "cut"), Refusal("oversized", "vqa", "b.png", "large")])
    assert log.counts() == {"unreadable_samples": 1, "oversized_samples": 1}
    assert "1 of 2 samples" in log.excess() and "more than DataConfig.max_refused_share = 25.00%; " in log.excess()


@pytest.mark.parametrize(("cause", "count"), [("missing", 99), ("missing", 100), ("damaged", 99), ("damaged", 180)])
def test_a_hundred_unreadable_samples_in_a_row_end_a_run_whatever_the_share(tmp_path, cause, count):
    """In the order of the data set where headers show it, of the rows where decoding does."""
    bad = range(20, 20 + count)
    source = Missing(300, **{"missing": (), "damaged": (), cause: bad})
    config = dataclasses.replace(VQA, rows=3, samples=4, window=50, max_refused_share=0.9)
    iterator = evaluation_batches(config, MODEL, source)
    iterator.list_refused_in(tmp_path)
    if count < 100:
        assert sum(len(ids_of(batch)) for batch in iterator) == 201
    else:
        with pytest.raises(DataError, match="100 samples in a row cannot be used, .*whatever .*the last: [0-9]+: "):
            list(iterator)
    iterator.close()
    listed = keys_listed(tmp_path / "unreadable.jsonl")
    assert len(listed) >= min(count, 100) and listed <= {str(number) for number in bad}
    assert cause == "damaged" or len(listed) == count
