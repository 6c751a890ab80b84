"""The state of a batch iterator names exactly the batches that remain."""

import dataclasses
import json

import numpy as np
import pytest

from data.errors import DataError
from data.packing.pipeline import training_batches
from tests.data.first_samples import CONFIG, MODEL, First, assert_same, ids_of, take


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
    # How often each comes is counted in test_every_sample_once.
    assert {number for batch in batches + remaining for number in ids_of(batch)} == set(range(21))
    for opened in (iterator, restored):
        opened.close()


def test_a_state_of_another_configuration_is_refused_by_name(train):
    state = training_batches(CONFIG, MODEL, train).get_state()
    other = training_batches(dataclasses.replace(CONFIG, seed=5, tokens=300), MODEL, train)
    with pytest.raises(DataError, match="seed 3 -> 5, tokens 256 -> 300"):
        other.set_state(state)
    # What does not decide the samples of a step may change.
    faster = dataclasses.replace(CONFIG, threads=2, prefetch=5, language_weight=0.5)
    training_batches(faster, MODEL, train).set_state(state)


def test_quadratic_cost_weights_may_change_between_runs(train):
    def batches(*quadratic_cost_weights):
        return training_batches(
            dataclasses.replace(CONFIG, quadratic_cost_weights=quadratic_cost_weights), MODEL, train
        )

    assert batches(("patches", 0.5)).get_state() == batches().get_state()


def test_a_step_can_be_rebuilt_from_its_sample_ids(train):
    iterator = training_batches(CONFIG, MODEL, train)
    for batch in take(iterator, 3):
        samples = iterator.load_samples(ids_of(batch))
        assert [sample.id for sample in samples] == ids_of(batch)
        assert sum(int(sample.layout.target_mask.sum()) for sample in samples) == batch.targets
        assert batch.real_and_capacity["backbone"][0] == sum(sample.sizes["tokens"] for sample in samples)
        assert batch.real_and_capacity["vision"][0] == sum(sample.sizes["patches"] for sample in samples)
        assert batch.real_and_capacity["generator"][0] == sum(sample.sizes["images"] for sample in samples)
        assert batch.arrays["backbone"]["weights"].sum(dtype=np.float64) == pytest.approx(1, rel=1e-6)
        assert batch.arrays["generator"]["weights"].sum(dtype=np.float64) == pytest.approx(1, rel=1e-6)
    iterator.close()


def test_closed_batches_raise_an_error(train):
    iterator = training_batches(CONFIG, MODEL, train)
    next(iterator)
    for _ in range(2):
        iterator.close()
    with pytest.raises(DataError, match="these batches are closed"):
        next(iterator)
