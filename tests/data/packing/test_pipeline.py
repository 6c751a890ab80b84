import collections
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from configs.architectures import BackboneConfig
from data.data_config import DataConfig
from data.datasets.easy_vqa import EasyVQA
from data.errors import DataError
from data.packing.pipeline import evaluation_batches, training_batches
from data.text.word_tokenizer import ANSWER, EOS
from tests.data.first_samples import CONFIG, MODEL, First, assert_same, ids_of, take


@pytest.fixture(scope="module")
def train():
    return EasyVQA("train")


@pytest.fixture(scope="module")
def held_out():
    return EasyVQA("test")


def asked_in(batch):
    """(sample id, branch, first word of the answer) of every question."""
    fields = batch.arrays["backbone"]
    rows, places = np.nonzero((fields["tokens"] == ANSWER) & (fields["weights"] > 0))
    samples = batch.sample_ids[rows, fields["segments"][rows, places] - 1]
    return list(zip(samples, fields["branches"][rows, places], fields["targets"][rows, places], strict=True))


def test_batches_do_not_depend_on_threads_or_prefetching(train):
    batches = take(training_batches(CONFIG, MODEL, train), 5)
    for threads, prefetch in ((0, 0), (3, 0), (2, 3)):
        config = dataclasses.replace(CONFIG, threads=threads, prefetch=prefetch)
        iterator = training_batches(config, MODEL, EasyVQA("train"))
        assert_same(batches, take(iterator, 5))
        iterator.close()


WORKERS = """
import dataclasses
from data.datasets.easy_vqa import EasyVQA
from data.packing.pipeline import training_batches
from tests.data.first_samples import CONFIG, MODEL, assert_same, take

if __name__ == "__main__":
    source = EasyVQA("train")
    batches = take(training_batches(CONFIG, MODEL, source), 7)
    iterator = training_batches(dataclasses.replace(CONFIG, workers=2), MODEL, source)
    assert_same(batches[:3], take(iterator, 3))
    state = iterator.get_state()
    iterator.close()
    alone = training_batches(CONFIG, MODEL, source)  # another number of workers
    alone.set_state(state)
    assert_same(batches[3:], take(alone, 4))
    alone.close()
"""


def test_worker_processes_make_the_same_batches(tmp_path):
    (tmp_path / "main.py").write_text(WORKERS)
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(" skipped" in line or "too many samples" in line for line in done.stderr.splitlines()), done.stderr


def test_a_host_decodes_only_its_rows_and_knows_the_totals(train):
    (whole,) = take(training_batches(CONFIG, MODEL, train), 1)
    (part,) = take(training_batches(CONFIG, MODEL, train, rows=[1, 2]), 1)
    assert (part.counts, part.targets, part.state) == (whole.counts, whole.targets, whole.state)
    np.testing.assert_array_equal(part.sample_ids, whole.sample_ids)
    for module, fields in whole.arrays.items():
        for name, array in fields.items():
            np.testing.assert_array_equal(part.arrays[module][name][1:3], array[1:3])
    assert not part.arrays["backbone"]["tokens"][[0, 3]].any() and not part.arrays["vision"]["patches"][[0, 3]].any()


def test_another_seed_gives_another_order(train):
    other = dataclasses.replace(CONFIG, seed=4)
    ids, other_ids = ([ids_of(batch) for batch in take(training_batches(c, MODEL, train), 2)] for c in (CONFIG, other))
    assert ids != other_ids


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_restored_iterator_gives_the_remaining_batches(train, prefetch):
    config = dataclasses.replace(CONFIG, prefetch=prefetch)
    iterator = training_batches(config, MODEL, train)
    states, batches = [iterator.get_state()], []
    for _ in range(8):
        batches.append(next(iterator))
        states.append(json.loads(json.dumps(iterator.get_state())))
    counters = iterator.counters()
    for step in (0, 1, 3, 7):
        restored = training_batches(config, MODEL, train)
        restored.set_state(states[step])
        assert_same(batches[step:], take(restored, 8 - step))
        assert restored.get_state() == states[8]
        assert restored.counters() == counters
        restored.close()
    # Back on the very iterator that has gone further.
    iterator.set_state(states[2])
    assert_same(batches[2:], take(iterator, 6))
    iterator.close()
    assert max(len(json.dumps(state)) for state in states) < 1000


def test_a_state_is_restored_across_epochs():
    source = First("train", 7)  # every batch crosses epochs
    iterator = training_batches(CONFIG, MODEL, source)
    batches = take(iterator, 4)
    state = iterator.get_state()
    remaining = take(iterator, 3)
    restored = training_batches(CONFIG, MODEL, source)
    restored.set_state(state)
    assert_same(remaining, take(restored, 3))
    # How often each comes is counted in test_accounting.
    assert {number for batch in batches + remaining for number in ids_of(batch)} == set(range(21))
    for each in (iterator, restored):
        each.close()


def test_a_state_of_another_configuration_is_refused_by_name(train):
    state = training_batches(CONFIG, MODEL, train).get_state()
    other = training_batches(dataclasses.replace(CONFIG, seed=5, tokens=300), MODEL, train)
    with pytest.raises(DataError, match="seed 3 -> 5, tokens 256 -> 300"):
        other.set_state(state)
    # What does not decide the samples of a step may change.
    faster = dataclasses.replace(CONFIG, threads=2, prefetch=5, language_weight=0.5)
    training_batches(faster, MODEL, train).set_state(state)


def test_kinds_are_drawn_in_proportion_and_samples_once_an_epoch(train):
    iterator = training_batches(CONFIG, MODEL, train)
    numbers = [number for batch in take(iterator, 40) for number in ids_of(batch)]
    samples = iterator.counters()["samples"]
    iterator.close()
    assert sum(samples.values()) == len(numbers) == len(set(numbers))
    for kind, share in (("vqa", 1 / 1.7), ("description", 0.5 / 1.7), ("text", 0.2 / 1.7)):
        assert samples[kind] / len(numbers) == pytest.approx(share, abs=0.02)
    # Two kinds of the same pictures must not come in the same order: then one's would be all among the other's.
    asked, drawn = ({n % 4000 for n in numbers if first <= n < first + 4000} for first in (0, 4000))
    assert len(asked & drawn) < len(drawn) / 2


def test_a_step_can_be_rebuilt_from_its_sample_ids(train):
    iterator = training_batches(CONFIG, MODEL, train)
    for batch in take(iterator, 3):
        samples = iterator.load_samples(ids_of(batch))
        assert [sample.id for sample in samples] == ids_of(batch)
        assert sum(int(sample.layout.target_mask.sum()) for sample in samples) == batch.targets
        assert batch.counts["backbone"][0] == sum(sample.sizes["tokens"] for sample in samples)
        assert batch.counts["vision"][0] == sum(sample.sizes["patches"] for sample in samples)
        assert batch.counts["generator"][0] == sum(sample.sizes["images"] for sample in samples)
        assert batch.arrays["backbone"]["weights"].sum(dtype=np.float64) == pytest.approx(1, rel=1e-6)
        assert batch.arrays["generator"]["weights"].sum(dtype=np.float64) == pytest.approx(1, rel=1e-6)
    iterator.close()


def test_evaluation_asks_every_question_of_the_test_split_exactly_once(held_out):
    asked = collections.Counter()
    samples = collections.Counter()
    iterator = evaluation_batches(dataclasses.replace(CONFIG, rows=16), MODEL, held_out)
    for batch in iterator:
        assert batch.sample_ids.shape[0] == 16
        samples.update(ids_of(batch))
        found = asked_in(batch)
        for number, branch, word in found:
            question, answer = held_out.pairs[held_out.image_ids[number]][branch - 1]
            assert held_out.tokenizer.decode([word]) == answer
            asked[(int(number), question)] += 1
        assert len(found) == (batch.arrays["backbone"]["targets"][batch.arrays["backbone"]["weights"] > 0] == EOS).sum()
    assert samples == collections.Counter(range(1000))
    assert len(asked) == 9673
    assert set(asked.values()) == {1}
    assert iterator.counters()["samples"] == {"vqa": 1000}


def test_evaluation_of_several_kinds_takes_each_sample_once():
    iterator = evaluation_batches(CONFIG, MODEL, First("test", 50), kinds=("text", "vqa"))
    assert collections.Counter(number for batch in iterator for number in ids_of(batch)) == collections.Counter(
        [*range(50), *range(100, 150)]
    )


def test_unsuitable_models_and_kinds_are_refused(train):
    with pytest.raises(DataError, match="no samples of kind 'audio'; it has vqa, description, text"):
        training_batches(dataclasses.replace(CONFIG, mixture=(("audio", 1.0),)), MODEL, train)
    with pytest.raises(DataError, match=r"35 ids, more than backbone.vocabulary = 34; raise it"):
        training_batches(CONFIG, dataclasses.replace(MODEL, backbone=BackboneConfig(vocabulary=34)), train)
    learned = dataclasses.replace(MODEL.backbone, positions="learned", max_positions=CONFIG.tokens)
    training_batches(CONFIG, dataclasses.replace(MODEL, backbone=learned), train).close()
    short = dataclasses.replace(MODEL, backbone=dataclasses.replace(learned, max_positions=CONFIG.tokens - 1))
    for batches in (training_batches, evaluation_batches):
        with pytest.raises(DataError, match=rf"tokens = {CONFIG.tokens}, .* {CONFIG.tokens - 1} learned positions"):
            batches(CONFIG, short, train)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"tokens": 0}, "capacity of a row is 0 tokens"),
        ({"seed": -1}, "seed is -1"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"language_weight": float("nan")}, "language_weight is nan"),
        ({"generator_weight": -1.0}, "generator_weight is -1.0"),
        ({"max_refused_share": 1.0}, "max_refused_share is 1.0"),
        ({"oversized": "drop"}, "oversized is 'drop'; choose one of skip, error"),
        ({"grouping": "best"}, "grouping is 'best'; choose one of"),
        ({"workers": -1}, "workers is -1"),
        ({"mixture": (("vqa", 0.0),)}, "with a weight above zero"),
        ({"mixture": (("vqa", 1.0), ("vqa", 2.0))}, "each kind once"),
    ],
)
def test_invalid_configurations_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        DataConfig(**changes)


def test_a_process_that_leaves_an_iterator_open_ends_cleanly():
    program = """
from configs.architectures import ModelConfig
from data.datasets.easy_vqa import EasyVQA
from data.data_config import DataConfig
from data.packing.pipeline import training_batches
batches = training_batches(DataConfig(threads=1, prefetch=2), ModelConfig(), EasyVQA("train"))
next(batches)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=pathlib.Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_batches_raise_an_error(train):
    iterator = training_batches(CONFIG, MODEL, train)
    next(iterator)
    for _ in range(2):
        iterator.close()
    with pytest.raises(DataError, match="these batches are closed"):
        next(iterator)
