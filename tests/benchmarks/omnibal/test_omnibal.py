"""Rows of `benchmarks.omnibal`: what is drawn, padded and grouped, and that each step of balance is measured."""

import numpy as np
import pytest

from benchmarks.omnibal.sample_rows import TOKENS, SampleSource
from benchmarks.omnibal.speed import measure_partition
from benchmarks.omnibal.steps import measure_model
from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from configs.workloads import SyntheticData
from mmjax import cli
from sharding.specs.layers.layer import LoadColumn

SMALLEST = "internvit_6b_llama3_8b"


@pytest.fixture(scope="module")
def described():
    cli.parse_gin((f"models/{SMALLEST}.gin", "data/internvl_1_2_like.gin"))
    return cli.configured(ModelConfig), cli.configured(SyntheticData)


@pytest.fixture(scope="module")
def source(described):
    model, data = described
    return SampleSource(data.kinds[0][0], model)


@pytest.fixture(scope="module")
def sizes(source):
    return source.draw(2_000, np.random.default_rng(3))


def test_samples_have_whole_tiles_with_a_thumbnail_and_fit_into_a_row(sizes):
    tiles, tokens = sizes.T
    assert set(np.unique(tiles)) <= set(range(11))
    assert (tokens >= 256 * tiles + 16).all()
    assert (tokens <= TOKENS).all()


def test_padded_rows_are_as_long_as_the_longest_of_their_microbatch(source, sizes):
    rows = source.padded_at_random(sizes, 4, np.random.default_rng(0))
    backbone, tiles = rows.loads["backbone"], rows.loads["vision"][:, LoadColumn.ITEMS]
    lengths = backbone[:, LoadColumn.TOKENS].reshape(-1, 4)
    assert (lengths == lengths[:, :1]).all()
    np.testing.assert_array_equal(backbone[:, LoadColumn.SQUARED_LENGTHS], backbone[:, LoadColumn.TOKENS] ** 2)
    assert len(backbone) == len(sizes) // 4 * 4
    assert tiles.sum() <= sizes[:, 0].sum()
    real = sizes[:, 1].sum() / lengths.sum()
    assert rows.padding == pytest.approx(1 - real, abs=0.01)
    assert rows.samples == 1


@pytest.mark.parametrize("static_shapes", [False, True])
def test_groups_hold_all_samples_within_the_capacity(source, sizes, static_shapes):
    tile_capacity, token_capacity = source.capacity(sizes)
    rows = source.grouped(sizes, np.random.default_rng(0), static_shapes)
    backbone, tiles = rows.loads["backbone"], rows.loads["vision"][:, LoadColumn.ITEMS]
    assert tiles.max() <= tile_capacity
    assert backbone[:, LoadColumn.TOKENS].max() <= token_capacity
    assert rows.samples * len(tiles) == pytest.approx((sizes[:, 0] <= tile_capacity).sum())
    squares = (sizes[sizes[:, 0] <= tile_capacity, 1] ** 2).sum()
    assert backbone[:, LoadColumn.SQUARED_LENGTHS].sum() == pytest.approx(squares)
    if static_shapes:
        assert (tiles == tile_capacity).all()
        assert 0 < rows.padding < 0.5
    else:
        assert rows.padding == 0
        assert tiles.sum() == sizes[sizes[:, 0] <= tile_capacity, 0].sum()


def test_samples_are_those_of_the_papers_table(source):
    sizes = source.draw(60_000, np.random.default_rng(0))
    assert source.capacity(sizes) == (9.0, TOKENS) and sizes[:, 1].max() > 0.99 * TOKENS
    rows = source.grouped(sizes, np.random.default_rng(0), static_shapes=False)
    assert rows.samples == pytest.approx(4.6, abs=0.05)  # table 4 of arXiv 2407.20761


def test_each_step_of_balance_gains_on_the_smallest_model(described):
    rows = {row["name"]: row for row in measure_model(SMALLEST, *described, CLUSTERS["a100"])}
    gains = [row for name, row in rows.items() if name.endswith("times as fast as without")]
    assert len(gains) == 3
    assert all(row["met"] for row in gains)
    overall = rows[f"{SMALLEST}: times as fast after all"]["value"]
    assert overall == pytest.approx(np.prod([row["value"] for row in gains]))
    by_parameters, balanced = (
        rows[f"{SMALLEST}, {way}: slowest stage over the mean"]["value"] for way in ("by parameters", "balanced")
    )
    assert 1 <= balanced < by_parameters
    assert rows[f"{SMALLEST}, slowest stage of the paper's search over the optimum"]["value"] >= 1


def test_the_long_chain_is_partitioned():
    seconds, over_bound = measure_partition()
    assert seconds["value"] > 0
    assert 1 <= over_bound["value"] < 1.05
