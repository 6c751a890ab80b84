"""The benchmark of grouping, on small data sets."""

import numpy as np

from benchmarks.balancing import grouping as benchmark
from benchmarks.balancing import references
from data.packing.grouping.bin_packing import as_columns
from data.packing.grouping.groups import Groups
from data.packing.grouping.isf import sample_and_filter


def test_data_sets_have_the_stated_shares_of_images():
    for sizes, images in ((benchmark.llava(20_000), 0.94), (benchmark.internvl(20_000), 0.9)):
        has_image = sizes[:, 0] > 0
        assert abs(has_image.mean() - images) < 0.01
        assert (sizes[:, 1] >= 256 * sizes[:, 0]).all()
    assert abs((benchmark.internvl(20_000)[:, 0] > 9).mean() - 0.018) < 0.004


def test_the_same_random_numbers_give_the_groups_of_the_reference():
    sizes = benchmark.llava(5_000)
    items = [(number, *size) for number, size in enumerate(sizes.tolist())]
    accepted, left = references.iterative_sampling_and_filtering(
        items, (9.0, 4096.0), (9.0, 3968.0), 4, np.random.default_rng(0)
    )
    capacity = np.array([9.0, 4096.0])
    groups, rest = sample_and_filter(
        as_columns(sizes, capacity), capacity, np.array([9.0, 3968.0]), 4, np.arange(5_000), np.random.default_rng(0)
    )
    assert [members.tolist() for members in groups] == [[item[0] for item in group] for group in accepted]
    assert rest.tolist() == [item[0] for item in left]


def test_lost_and_repeated_samples_are_counted():
    assert benchmark.count_lost(Groups.from_lists([[0, 1]], refused=[2]), 3) == 0
    assert benchmark.count_lost(Groups.from_lists([[0, 1]]), 3) == 1
    assert benchmark.count_lost(Groups.from_lists([[0, 1], [1]], refused=[2]), 3) == 1


def test_rows_say_whether_their_goals_are_met():
    assert benchmark.row("at most", 1.0, 1.0, 9.0)["met"]
    assert not benchmark.row("at most", 1.1, 1.0, 9.0)["met"]
    assert benchmark.row("at least", 1.1, 1.0, 9.0, least=True)["met"]
    assert not benchmark.row("at least", 0.9, 1.0, 9.0, least=True)["met"]
    assert benchmark.row("near", 0.996, 1.0, 9.0, within=0.005)["met"]
    assert not benchmark.row("near", 1.006, 1.0, 9.0, within=0.005)["met"]
