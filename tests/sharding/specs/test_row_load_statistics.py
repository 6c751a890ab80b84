"""Loads drawn from a description: rows are full, sizes and counts are as configured, rows are used equally often."""

from typing import Any

import numpy as np
import pytest

from configs.architectures import AudioConfig, BackboneConfig, ModelConfig, UNetConfig, VisionConfig
from configs.common.errors import UserError
from configs.workloads import Lognormal, SampleKind, SyntheticData
from sharding.specs.row_load_statistics import (
    RowLoadStatistics,
    draw_fitting_sample_loads,
    draw_row_loads,
    draw_sample_loads,
    joined_sample_loads,
)

MODEL = ModelConfig(
    (VisionConfig(patch=16, merge=2), AudioConfig(merge=2)),
    BackboneConfig(),
    (UNetConfig(conditions=4),),
)
TEXT = SampleKind(text_tokens=Lognormal(30, 0.5))


def one(kind, **settings):
    return draw_row_loads(SyntheticData(**{"row_tokens": 2000, "kinds": ((kind, 1.0),)} | settings), MODEL, 50)


def test_text_fills_rows_and_brings_no_load_to_encoders():
    loads = one(TEXT).loads
    tokens, squares, samples, _ = loads["backbone"].T
    assert ((tokens <= 2000) & (tokens > 1700)).all() and (samples > 10).all()
    assert (squares < tokens**2).all() and (squares >= tokens**2 / samples).all()
    assert not loads["vision"].any() and not loads["audio"].any() and not loads["generator"].any()


def test_a_joined_row_is_one_segment():
    tokens, squares, *_ = one(TEXT, one_document=True).loads["backbone"].T
    np.testing.assert_array_equal(squares, tokens**2)


def test_an_image_becomes_patches_and_merged_patches_become_backbone_tokens():
    kind = SampleKind(text_tokens=Lognormal(10, 0.0), image_counts=(0.0, 1.0), image_side=Lognormal(256, 0.0))
    loads = one(kind, row_tokens=100).loads  # 64 tokens of the image, 2 delimiters, 10 of text: one sample a row
    np.testing.assert_array_equal(loads["vision"], np.tile([256.0, 256.0**2, 1.0, 0.0], (50, 1)))
    np.testing.assert_array_equal(loads["backbone"], np.tile([76.0, 76.0**2, 1.0, 0.0], (50, 1)))


@pytest.mark.parametrize(("registers", "positions", "attended"), [(0, 260.0, 257.0), (4, 264.0, 261.0)])
def test_class_tokens_and_registers_take_whole_cells_and_attend_as_one_position_each(registers, positions, attended):
    kind = SampleKind(text_tokens=Lognormal(10, 0.0), image_counts=(0.0, 1.0), image_side=Lognormal(256, 0.0))
    model = ModelConfig((VisionConfig(patch=16, merge=2, class_token=True, registers=registers),), BackboneConfig(), ())
    loads = draw_row_loads(SyntheticData(row_tokens=100, kinds=((kind, 1.0),)), model, 3).loads
    np.testing.assert_array_equal(loads["vision"], np.tile([positions, attended**2, 1.0, 0.0], (3, 1)))
    np.testing.assert_array_equal(loads["backbone"], np.tile([76.0, 76.0**2, 1.0, 0.0], (3, 1)))


def test_large_images_are_cut_into_tiles_and_a_thumbnail():
    kind = SampleKind(
        text_tokens=Lognormal(10, 0.0),
        image_counts=(0.0, 1.0),
        image_side=Lognormal(1000, 0.0),
        tile_side=448,
        max_tiles=4,
    )
    loads = one(kind, row_tokens=1100).loads
    np.testing.assert_array_equal(loads["vision"][0], [5 * 784, 5 * 784**2, 5, 0.0])
    assert loads["backbone"][0, 0] == 10 + 5 * (196 + 2)


def test_clips_have_fifty_positions_a_second():
    kind = SampleKind(text_tokens=Lognormal(10, 0.0), clip_counts=(0.0, 0.0, 1.0), clip_seconds=Lognormal(3.0, 0.0))
    loads = one(kind, row_tokens=200).loads
    np.testing.assert_array_equal(loads["audio"][0], [300, 2 * 150**2, 2, 0.0])
    assert loads["backbone"][0, 0] == 10 + 2 * (75 + 2)


def test_generated_images_take_condition_positions_in_the_row():
    kind = SampleKind(
        text_tokens=Lognormal(10, 0.0), image_counts=(0.0, 1.0), image_side=Lognormal(64, 0.0), generated_share=1.0
    )
    loads = one(kind, row_tokens=24).loads
    assert loads["generator"][0].tolist() == [0, 0, 1, 0] and loads["backbone"][0, 0] == 10 + 4 + 2 + 4


def test_drawn_samples_have_the_configured_shares():
    images = SampleKind(text_tokens=Lognormal(10, 0.0), image_counts=(0.5, 0.0, 0.5), image_side=Lognormal(32, 0.0))
    data = SyntheticData(100_000, ((TEXT, 3.0), (images, 1.0)))
    loads = draw_row_loads(data, MODEL, 2).loads
    share = loads["vision"][:, 2].sum() / loads["backbone"][:, 2].sum()
    assert 0.2 < share < 0.3


def test_a_sample_longer_than_a_row_is_truncated():
    tokens, squares, samples, _ = one(TEXT, row_tokens=5).loads["backbone"].T
    assert (tokens == 5).all() and (squares == 25).all() and (samples == 1).all()


def test_the_same_seed_draws_the_same_rows():
    a = draw_row_loads(SyntheticData(500, ((TEXT, 1.0),)), MODEL, 5, 1).loads["backbone"]
    draw_row_loads.cache_clear()
    b = draw_row_loads(SyntheticData(500, ((TEXT, 1.0),)), MODEL, 5, 1).loads["backbone"]
    other = draw_row_loads(SyntheticData(500, ((TEXT, 1.0),)), MODEL, 5, 2).loads["backbone"]
    np.testing.assert_array_equal(a, b)
    assert (a != other).any()


def test_rows_are_drawn_once_and_cannot_be_changed():
    description = SyntheticData(500, ((TEXT, 1.0),))
    drawn = draw_row_loads(description, MODEL, 5)
    assert draw_row_loads(SyntheticData(500, ((TEXT, 1.0),)), MODEL, 5) is drawn
    with pytest.raises(ValueError, match="read-only"):
        drawn.loads["backbone"][0] = 0


def test_lists_are_refused_with_the_tuples_to_write():
    kinds: Any = [[TEXT, 1.0]]
    with pytest.raises(UserError, match=r"SyntheticData.kinds is .* it must be tuple"):
        SyntheticData(500, kinds)


def test_a_global_batch_uses_every_row_as_often_as_any_other():
    loads = np.arange(20.0).reshape(5, 4)
    drawn = RowLoadStatistics({"backbone": loads}).sample_batch(13)["backbone"][:, 0]
    counts = np.unique(drawn, return_counts=True)[1]
    assert len(drawn) == 13 and len(counts) == 5 and counts.max() - counts.min() <= 1


def test_modules_with_different_numbers_of_rows_are_refused():
    with pytest.raises(ValueError, match="every module needs as many rows"):
        RowLoadStatistics({"vision": np.zeros((2, 4)), "backbone": np.zeros((3, 4))})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Lognormal(0.0, 1.0), "0 < minimum <= median"),
        (
            lambda: SampleKind(text_tokens=TEXT.text_tokens, image_counts=(0.5, 0.4)),
            "SampleKind.image_counts = .* must add up to 1",
        ),
        (
            lambda: SampleKind(text_tokens=TEXT.text_tokens, generated_share=2.0),
            "SampleKind.generated_share is 2.0; it is a share",
        ),
        (lambda: SyntheticData(10, ()), "kinds with positive shares"),
    ],
)
def test_invalid_fields_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_samples_are_drawn_one_by_one_and_never_truncated():
    kind = SampleKind(text_tokens=Lognormal(100, 1.0), image_counts=(0.5, 0.5), image_side=Lognormal(256, 0.0))
    data = SyntheticData(row_tokens=100, kinds=((kind, 0.5), (TEXT, 0.5)))
    loads = draw_sample_loads(data, MODEL, 400).loads
    tokens, squares, samples, _ = loads["backbone"].T
    assert (samples == 1).all() and tokens.max() > 100
    np.testing.assert_array_equal(squares, tokens**2)
    assert set(loads["vision"][:, 2]) == {0, 1}
    assert 60 < loads["vision"][:, 2].sum() < 140


def test_a_batch_of_whole_steps_is_one_of_them_and_of_other_rows_random():
    loads = np.arange(24.0).reshape(6, 4)
    steps = RowLoadStatistics({"backbone": loads}, 2)
    for seed in range(5):
        first = seed % 3 * 2
        np.testing.assert_array_equal(steps.sample_batch(2, seed)["backbone"], loads[first : first + 2])
    mixed = steps.sample_batch(6, 1)["backbone"]
    assert sorted(mixed[:, 0]) == loads[:, 0].tolist() and mixed[:, 0].tolist() != loads[:, 0].tolist()
    with pytest.raises(ValueError, match="6 rows are no whole steps of 4"):
        RowLoadStatistics({"backbone": loads}, 4)


def test_joined_samples_have_the_sums_of_their_loads():
    data = SyntheticData(row_tokens=2000, kinds=((TEXT, 1.0),))
    samples = draw_fitting_sample_loads(data, MODEL, 6)
    members, starts = np.array([4, 0, 2, 5]), np.array([0, 3])
    joined = joined_sample_loads(samples, members, starts, data, MODEL)
    for module, loads in samples.loads.items():
        np.testing.assert_array_equal(joined[module], [loads[[4, 0, 2]].sum(axis=0), loads[5]])


def test_a_drawn_sample_that_is_longer_than_a_row_is_truncated():
    data = SyntheticData(row_tokens=30, kinds=((TEXT, 1.0),))
    whole, fitting = (
        draw(data, MODEL, 200).loads["backbone"] for draw in (draw_sample_loads, draw_fitting_sample_loads)
    )
    longer = whole[:, 0] > 30
    assert 20 < longer.sum() < 180
    np.testing.assert_array_equal(fitting[~longer], whole[~longer])
    assert (fitting[longer] == [30.0, 900.0, 1.0, 0.0]).all()
