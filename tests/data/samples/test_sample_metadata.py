"""Sample metadata has the sizes of the loaded sample, with and without class tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import ModelConfig, VisionConfig
from data.data_config import RowCapacity
from data.media.patches import patchify, unpatchify
from data.packing.global_batch import build_global_batch
from data.packing.loss_normalization import BatchTotals
from data.packing.rows.packed_rows import pack_samples
from data.samples.image_format import PatchFormat, image_item
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata, cells_with_tokens
from data.samples.token_layout import lay_out_tokens
from data.text.word_tokenizer import IMAGE

PATCH, MERGE = 2, 2
UNIT = PATCH * MERGE
CAPACITY = RowCapacity(tokens=24, lengths={"patches": 96}, images=0, samples=4)


def form(class_token):
    return SampleFormat(
        (PatchFormat(module="vision", patch=PATCH, merge=MERGE, max_length=96, prefix_tokens=int(class_token)),), None
    )


def picture(seed, rows, columns):
    return np.random.default_rng(seed).integers(0, 256, (rows * UNIT, columns * UNIT, 3), np.uint8)


def outline(pictures, sample_format):
    """Two words before every image's tokens."""
    items = [
        image_item(lambda seen=seen: seen, seen.shape[:2], sample_format.encoder_formats["patches"])
        for seen in pictures
    ]
    tokens = [
        token
        for item in items
        for token in (8, 9, *[IMAGE] * sample_format.encoder_formats["patches"].token_count(item.length))
    ]
    return SampleMetadata(
        kind="seen",
        layout=lay_out_tokens([1, *tokens], [], [()], {"patches": IMAGE}),
        sample_format=sample_format,
        items=items,
    )


def test_the_cells_of_class_tokens_give_no_backbone_token():
    assert cells_with_tokens([8, 20], PatchFormat(merge=2, prefix_tokens=1)).tolist() == [1, 3, 4, 5, 6]
    assert cells_with_tokens([8, 20], PatchFormat(merge=2)).tolist() == list(range(7))
    assert cells_with_tokens([], PatchFormat(merge=2, prefix_tokens=1)).tolist() == []


def test_a_class_token_is_the_first_value_of_its_cell():
    sample_format = form(True)
    sample = outline([picture(0, 1, 2)], sample_format).load(0)
    values, items, positions = sample.encoder_inputs["patches"]
    assert items.tolist() == [1, 0, 0, 0] + [1] * 8
    assert positions[:5].tolist() == [[-1, -1], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert not values[:4].any() and values[4:].any()
    assert sample.layout.encoder_indices["patches"].tolist() == [-1, -1, -1, 1, 2]


def test_registers_follow_the_class_token_over_as_many_cells_as_they_need():
    patches = PatchFormat(module="vision", patch=PATCH, merge=MERGE, max_length=96, prefix_tokens=5)
    sample = outline([picture(0, 1, 1)], SampleFormat((patches,), None)).load(0)
    values, items, positions = sample.encoder_inputs["patches"]
    assert items.tolist() == [1] * 5 + [0] * 3 + [1] * 4
    assert positions[:6].tolist() == [[-1, -1], [-2, -2], [-3, -3], [-4, -4], [-5, -5], [0, 0]]
    assert not values[:8].any() and values[8:].any()
    assert sample.layout.encoder_indices["patches"].tolist() == [-1, -1, -1, 2]


def test_a_text_sample_has_no_cells():
    sample = outline([], form(True)).load(0)
    assert sample.layout.encoder_indices["patches"].tolist() == [-1]


def test_images_are_scaled_down_to_leave_room_for_the_class_token():
    sample_format = SampleFormat(
        (PatchFormat(module="vision", patch=PATCH, merge=MERGE, max_length=16, prefix_tokens=1),), None
    )
    shrunk = image_item(lambda: picture(0, 4, 4), (4 * UNIT, 4 * UNIT), sample_format.encoder_formats["patches"])
    assert shrunk.length <= 16 and len(shrunk.load().values) == shrunk.length


sizes = st.tuples(st.integers(1, 2), st.integers(1, 3))
samples = st.lists(st.lists(sizes, max_size=2), min_size=1, max_size=4)


@pytest.mark.parametrize("class_token", [True, False])
@given(samples)
@settings(max_examples=20, deadline=None)
def test_packed_rows_contain_every_image_and_the_planned_tokens(class_token, wanted):
    sample_format = form(class_token)
    model = ModelConfig((VisionConfig(patch=PATCH, class_token=class_token),), generators=())
    pictures = [[picture(10 * n + m, *size) for m, size in enumerate(sizes)] for n, sizes in enumerate(wanted)]
    outlines = [outline(seen, sample_format) for seen in pictures]
    loaded = [sketch.load(number) for number, sketch in enumerate(outlines)]
    for planned, sample in zip(outlines, loaded, strict=True):
        assert {name: planned.sizes.row_units[name] for name in sample.sizes} == sample.sizes
    rows = pack_samples(loaded, len(loaded), CAPACITY, sample_format)
    assert BatchTotals.from_rows(rows, sample_format) == BatchTotals.from_sizes(
        (sketch.sizes for sketch in outlines), sample_format
    )
    batch = build_global_batch(rows, model, sample_format).arrays
    vision, backbone = batch["vision"], batch["backbone"]
    squares = 0
    for number, seen_pictures in enumerate(pictures):
        ((row, place),) = np.argwhere(rows.sample_ids == number)
        index = backbone["vision_index"][row][rows.token_segments[row] == place + 1]
        cells = iter(index[index >= 0].tolist())
        for seen in seen_pictures:
            patches, positions = patchify(seen, PATCH, MERGE)
            cell_numbers = [next(cells) for _ in range(len(patches) // MERGE**2)]
            slots = np.add.outer(np.array(cell_numbers) * MERGE**2, np.arange(MERGE**2)).ravel()
            np.testing.assert_array_equal(vision["positions"][row, slots], positions)
            restored = unpatchify(vision["patches"][row, slots], positions, PATCH)
            np.testing.assert_array_equal(restored, seen)
            segment = np.flatnonzero(vision["segments"][row] == vision["segments"][row, slots[0]])
            assert set(segment) - set(slots.tolist()) == ({slots[0] - MERGE**2} if class_token else set())
            squares += len(segment) ** 2
        assert next(cells, None) is None
    attended = sample_format.encoder_formats["patches"].attended_positions
    planned = [attended(length) for sketch in outlines for length in sketch.sizes.items["patches"]]
    assert squares == sum(length**2 for length in planned)
