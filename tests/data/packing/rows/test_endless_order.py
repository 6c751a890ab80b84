"""The endless order of a kind's samples, for few ids and for many."""

import itertools
import pickle

import pytest

from data.packing.rows.endless_order import endless_order

SIZES = [1, 20, 1024, 1025, 3000]


def epochs(count, seed, number=3):
    order = endless_order(range(100, 100 + count), seed)
    return [[order[epoch * count + index] for index in range(count)] for epoch in range(number)]


@pytest.mark.parametrize("count", SIZES)
def test_every_epoch_has_every_sample_once(count):
    for epoch in epochs(count, 5):
        assert sorted(epoch) == list(range(100, 100 + count))


@pytest.mark.parametrize("count", SIZES[1:])
def test_epochs_and_seeds_have_orders_of_their_own(count):
    orders = [*epochs(count, 5), *epochs(count, 6)]
    assert all(one != other for one, other in itertools.combinations(orders, 2))
    assert orders == [*epochs(count, 5), *epochs(count, 6)]


@pytest.mark.parametrize("count", SIZES)
def test_a_worker_process_reads_the_same_order(count):
    order = endless_order(range(100, 100 + count), 5)
    copy = pickle.loads(pickle.dumps(order))
    assert [copy[position] for position in range(2 * count)] == [order[position] for position in range(2 * count)]
