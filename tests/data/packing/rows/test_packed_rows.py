import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.data_config import RowCapacity
from data.errors import DataError
from data.packing.rows.packed_rows import pack_samples
from data.samples.encoder_format import EncoderInputs
from data.samples.image_format import PatchFormat
from data.samples.sample import Sample
from data.samples.sample_format import SampleFormat, TargetImageFormat
from data.samples.token_layout import lay_out_tokens
from data.text.word_tokenizer import IMAGE

FORM = SampleFormat(
    (PatchFormat(module="vision", patch=1, merge=2, max_length=16),), TargetImageFormat("generator", 2, 2)
)
CAPACITY = RowCapacity(tokens=12, lengths={"patches": 16}, images=2, samples=3)


def make(number, cells=(), text=1, branches=(), drawn=0):
    """A sample of seen images of `cells` cells each, `text` words, branches of words, and `drawn` images."""
    rng = np.random.default_rng(number)
    count = 4 * sum(cells)
    trunk = [*[IMAGE] * sum(cells), *rng.integers(7, 50, text).tolist()]
    words = [rng.integers(7, 50, length).tolist() for length in branches]
    layout = lay_out_tokens(trunk, words, [(), *[range(1, length) for length in branches]], {"patches": IMAGE})
    return Sample(
        id=number,
        kind="made",
        layout=layout,
        encoder_inputs={
            "patches": EncoderInputs(
                rng.random((count, 3), np.float32),
                np.repeat(np.arange(1, len(cells) + 1, dtype=np.int32), [4 * size for size in cells]),
                rng.integers(0, 9, (count, 2), np.int32),
            )
        },
        target_images=rng.random((drawn, 2, 2, 3), np.float32),
        condition_positions=rng.integers(0, len(layout.tokens), (drawn, 2), np.int32),
    )


shapes = st.fixed_dictionaries(
    {
        "cells": st.lists(st.integers(1, 2), max_size=2).map(tuple),
        "text": st.integers(1, 4),
        "branches": st.lists(st.integers(1, 3), max_size=2).map(tuple),
        "drawn": st.integers(0, 2),
    }
).filter(lambda shape: sum(shape["cells"]) + shape["text"] + sum(shape["branches"]) <= 12)


@given(st.lists(shapes, min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_every_sample_can_be_read_back_from_its_row(shapes):
    samples = {number: make(number, **shape) for number, shape in enumerate(shapes)}
    rows = pack_samples(list(samples.values()), len(samples), CAPACITY, FORM)
    places_of_samples = [
        (int(number), row, place + 1)
        for row, ids in enumerate(rows.sample_ids)
        for place, number in enumerate(ids)
        if number >= 0
    ]
    assert sorted(number for number, _, _ in places_of_samples) == list(samples)
    for number, row, segment in places_of_samples:
        check_sample(samples[number], rows, row, segment)
    for row in range(len(rows.sample_ids)):
        check_padding(rows, row)


def check_sample(sample, rows, row, segment):
    """Compares all that the row says of the sample with the sample, place by place, in plain Python."""
    places = [place for place, number in enumerate(rows.token_segments[row]) if number == segment]
    assert places == list(range(places[0], places[0] + len(sample.layout.tokens)))
    for name in ("tokens", "branches", "positions", "targets", "target_mask"):
        assert getattr(rows.layout, name)[row, places].tolist() == getattr(sample.layout, name).tolist()

    # The merged vision token an <image> reads must be made of the very patches of the sample's cell.
    merged = rows.encoder_inputs["patches"].values[row].reshape(4, 4, 3)
    merged_positions = rows.encoder_inputs["patches"].positions[row].reshape(4, 4, 2)
    merged_images = rows.encoder_inputs["patches"].item_ids[row].reshape(4, 4)
    images = {}
    for place, cell in zip(places, sample.layout.encoder_indices["patches"], strict=True):
        index = rows.layout.encoder_indices["patches"][row, place]
        assert (index < 0) == (cell < 0)
        if cell >= 0:
            values = slice(4 * cell, 4 * cell + 4)
            np.testing.assert_array_equal(merged[index], sample.encoder_inputs["patches"].values[values])
            np.testing.assert_array_equal(merged_positions[index], sample.encoder_inputs["patches"].positions[values])
            (image,) = set(merged_images[index].tolist())
            images.setdefault(image, set()).add(int(sample.encoder_inputs["patches"].item_ids[4 * cell]))
    # One number in the row for each of the sample's images, and no other sample's.
    assert sorted(map(tuple, images.values())) == [(n + 1,) for n in range(len(images))]
    others = [
        rows.layout.encoder_indices["patches"][row, place]
        for place, number in enumerate(rows.token_segments[row])
        if number not in (0, segment) and rows.layout.encoder_indices["patches"][row, place] >= 0
    ]
    assert not {int(image) for index in others for image in merged_images[index]} & set(images)

    drawn = [place for place, number in enumerate(rows.target_image_samples[row]) if number == sample.id]
    assert len(drawn) == len(sample.target_images)
    for picture, place in enumerate(drawn):
        np.testing.assert_array_equal(rows.target_images[row, place], sample.target_images[picture])
        conditions = rows.condition_positions[row, place]
        assert (rows.token_segments[row, conditions] == segment).all()
        assert [places.index(condition) for condition in conditions] == sample.condition_positions[picture].tolist()


def check_padding(rows, row):
    unused = rows.token_segments[row] == 0
    assert (rows.layout.encoder_indices["patches"][row, unused] == -1).all()
    assert not rows.layout.target_mask[row, unused].any()
    assert not rows.encoder_inputs["patches"].values[row, rows.encoder_inputs["patches"].item_ids[row] == 0].any()
    assert not rows.condition_positions[row, rows.target_image_samples[row] < 0].any()
    numbers = np.unique(rows.encoder_inputs["patches"].item_ids[row])
    assert numbers.tolist() in ([*range(numbers.max() + 1)], [*range(1, numbers.max() + 1)])


def test_first_fit_fills_the_first_row_with_room():
    samples = [make(0, text=8), make(1, text=8), make(2, text=4), make(3, text=4)]
    rows = pack_samples(samples, 2, CAPACITY, FORM)
    assert rows.sample_ids.tolist() == [[0, 2, -1], [1, 3, -1]]


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ({"text": 13}, "13 tokens where a row holds 12"),
        ({"cells": (5,)}, "20 patches where a row holds 16"),
        ({"drawn": 3}, "3 images where a row holds 2"),
    ],
)
def test_samples_larger_than_a_row_are_named(shape, name):
    with pytest.raises(DataError, match=rf"sample 7 \(made\): {name}; raise the row's capacity"):
        pack_samples([make(7, **shape)], 1, CAPACITY, FORM)


def test_every_exhausted_capacity_opens_a_new_row():
    assert pack_samples([make(number) for number in range(4)], 2, CAPACITY, FORM).sample_ids.tolist() == [
        [0, 1, 2],
        [3, -1, -1],
    ]
    for shape in ({"text": 7}, {"cells": (3,)}, {"drawn": 2}):
        rows = pack_samples([make(0, **shape), make(1, **shape)], 2, CAPACITY, FORM)
        assert rows.sample_ids[:, 0].tolist() == [0, 1]


def test_more_samples_than_the_rows_hold_are_refused():
    with pytest.raises(DataError, match="3 samples do not fit into 2 rows"):
        pack_samples([make(number, text=12) for number in range(3)], 2, CAPACITY, FORM)


def test_capacities_of_nothing_are_refused():
    with pytest.raises(DataError, match="capacity of a row is 0 samples"):
        RowCapacity(tokens=1, lengths={"patches": 1}, images=0, samples=0)
