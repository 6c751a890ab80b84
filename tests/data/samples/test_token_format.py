"""Positions along three axes equal those of transformers' models on random mixes of text, pictures and clips."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import BackboneConfig, ModelConfig
from data.errors import BadSampleError
from data.samples.encoder_format import MediaItem
from data.samples.image_format import PatchFormat, image_items
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_format import TokenFormat
from data.samples.token_layout import lay_out_tokens

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import Qwen2_5_VLConfig, Qwen2VLConfig, Qwen3VLConfig  # noqa: E402
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel  # noqa: E402
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel  # noqa: E402
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel  # noqa: E402

MERGE, IMAGE, WORD = 2, 6, 9
PATCHES = PatchFormat(patch=2, merge=MERGE, max_length=4096)
SECONDS = TokenFormat(multimodal=True, positions_per_second=2.0)


def nothing():
    raise AssertionError("positions are known before anything is decoded")


def item(rows, columns, times=(), group=0):
    return MediaItem("patches", rows * columns * MERGE**2, nothing, "it", times, group, (rows, columns))


def complete(trunk, branches, items, form=SECONDS, losses=None):
    layout = lay_out_tokens(trunk, branches, losses or [()] * (1 + len(branches)), {"patches": IMAGE})
    return form.complete(layout, items, {"patches": PATCHES})


class Published:
    """What `get_rope_index` of a model reads of it, without any weights."""

    def __init__(self, kind, config):
        self.config, self._kind = config, kind

    def get_vision_position_ids(self, *arguments, **keywords):
        return self._kind.get_vision_position_ids(self, *arguments, **keywords)

    def rope_index(self, types, **grids):
        tokens = torch.zeros(1, len(types), dtype=torch.long)
        positions, _ = self._kind.get_rope_index(self, tokens, torch.tensor([types]), **grids)
        return positions[:, 0].numpy().T


text = st.integers(1, 4)
sides = st.tuples(st.integers(1, 3), st.integers(1, 4))
pictures = st.tuples(st.just("image"), sides)
clips = st.tuples(st.just("clip"), sides, st.integers(1, 4), st.sampled_from((0.25, 0.5)))
mixes = st.lists(st.tuples(text, pictures | clips), max_size=4)


# Of each model, the positions that a second takes: those of Qwen2-VL number the groups of frames.
CLIP_MODELS = {
    2.0: Published(Qwen2_5_VLModel, Qwen2_5_VLConfig(vision_config={"tokens_per_second": 2})),
    0.0: Published(Qwen2VLModel, Qwen2VLConfig()),
}


@pytest.mark.parametrize("per_second", CLIP_MODELS)
@given(mixes, text)
@settings(max_examples=60, deadline=None)
def test_positions_of_pictures_and_clips_are_those_of_qwen2_vl_and_2_5(per_second, mix, last_words):
    published = CLIP_MODELS[per_second]
    tokens, types, items, images, videos, seconds = [], [], [], [], [], []
    for words, (kind, (rows, columns), *clip) in mix:
        frames, interval = clip or (1, 0.0)
        # Ends of clips that last longer than their sides are the next test's.
        frames = min(frames, int((max(rows, columns) - 1) / (per_second * interval or 1)) + 1)
        tokens += [WORD] * words + [IMAGE] * (frames * rows * columns)
        types += [0] * words + [1 if kind == "image" else 2] * (frames * rows * columns)
        grid = [frames, rows * MERGE, columns * MERGE]
        if kind == "image":
            images.append(grid)
            items.append(item(rows, columns))
        else:
            videos.append(grid)
            seconds.append(interval)
            items += [item(rows, columns, (interval * n, interval * (n + 0.5)), n) for n in range(frames)]
    tokens, types = tokens + [WORD] * last_words, types + [0] * last_words
    expected = published.rope_index(
        types,
        image_grid_thw=torch.tensor(images) if images else None,
        video_grid_thw=torch.tensor(videos) if videos else None,
        **({"second_per_grid_ts": torch.tensor(seconds)} if videos and per_second else {}),
    )
    form = TokenFormat(multimodal=True, positions_per_second=per_second)
    np.testing.assert_array_equal(complete(tokens, [], items, form).positions, expected)


@given(mixes, text)
@settings(max_examples=40, deadline=None)
def test_positions_of_pictures_between_texts_are_qwen3_vls(mix, last_words):
    """Qwen3-VL writes times as text, so each group of frames is a picture of its own."""
    published = Published(Qwen3VLModel, Qwen3VLConfig())
    tokens, types, items, images, videos = [], [], [], [], []
    for words, (kind, (rows, columns), *clip) in mix:
        frames = clip[0] if clip else 1
        for group in range(frames):
            tokens += [WORD] * words + [IMAGE] * (rows * columns)
            types += [0] * words + [1 if kind == "image" else 2] * (rows * columns)
            items.append(item(rows, columns, (0.5 * group,) if clip else (), group))
        (images if kind == "image" else videos).append([frames, rows * MERGE, columns * MERGE])
    tokens, types = tokens + [WORD] * last_words, types + [0] * last_words
    expected = published.rope_index(
        types,
        image_grid_thw=torch.tensor(images) if images else None,
        video_grid_thw=torch.tensor(videos) if videos else None,
    )
    form = TokenFormat(multimodal=True)
    np.testing.assert_array_equal(complete(tokens, [], items, form).positions, expected)


def test_text_follows_the_largest_position_of_a_long_clip():
    """As the paper has it (section 2.1); transformers 5.24 continues after the clip's rows and columns."""
    items = [item(1, 2, (3.0 * group,), group) for group in range(3)]
    positions = complete([WORD, *[IMAGE] * 6, WORD], [], items).positions
    assert positions.tolist() == [[0] * 3, [1, 1, 1], [1, 1, 2], [7, 1, 1], [7, 1, 2], [13, 1, 1], [13, 1, 2], [14] * 3]
    by_group = complete([WORD, *[IMAGE] * 6, WORD], [], items, TokenFormat(multimodal=True)).positions
    assert by_group[:, 0].tolist() == [0, 1, 1, 2, 2, 3, 3, 4]


def test_two_clips_one_after_the_other_begin_each_at_its_own_start():
    items = [item(1, 1, (float(group),), group) for group in (0, 1, 0, 1)]
    positions = complete([IMAGE] * 4, [], items).positions
    assert positions.tolist() == [[0, 0, 0], [2, 0, 0], [3, 3, 3], [5, 3, 3]]


def test_branches_continue_from_the_end_of_the_trunk():
    trunk = [WORD, *[IMAGE] * 6]
    positions = complete(trunk, [[WORD, WORD], [IMAGE, IMAGE, WORD]], [item(2, 3), item(1, 2)]).positions
    assert positions[len(trunk) :].tolist() == [[4] * 3, [5] * 3, [4, 4, 4], [4, 4, 5], [6] * 3]


def test_tokens_of_a_picture_apart_from_each_other_are_refused():
    with pytest.raises(BadSampleError, match="1 tokens of it follow one another, and it has 1 x 2 cells"):
        complete([IMAGE, WORD, IMAGE], [], [item(1, 2)])


def test_each_image_is_a_block():
    form = TokenFormat(bidirectional="images")
    layout = complete([WORD, IMAGE, IMAGE, IMAGE, WORD, IMAGE], [[WORD, IMAGE]], [item(1, 2), *[item(1, 1)] * 0] + [
        item(1, 1) for _ in range(3)
    ], form)  # fmt: skip
    assert layout.blocks.tolist() == [0, 1, 1, 2, 0, 3, 0, 4]
    assert layout.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_prompt_is_a_block_up_to_its_first_target():
    form = TokenFormat(bidirectional="prompt")
    one = complete([WORD, IMAGE, WORD, WORD, WORD, WORD], [], [item(1, 1)], form, [(3, 5)])
    assert one.blocks.tolist() == [1, 1, 1, 0, 0, 0]
    several = complete([IMAGE, WORD], [[WORD] * 3, [WORD] * 2], [item(1, 1)], form, [(), (2,), (1,)])
    assert several.blocks.tolist() == [1, 1, 2, 2, 0, 3, 0]
    assert complete([WORD] * 3, [], [], form).blocks.tolist() == [1, 1, 1]


def test_a_decoded_sample_has_the_positions_of_the_model():
    model = ModelConfig(backbone=BackboneConfig(width=32, heads=4, rope_sections=(2, 1, 1)), generators=())
    form = SampleFormat.for_model(model, {"patches": 128})
    assert form.tokens == TokenFormat(multimodal=True)
    seen = np.zeros((16, 48, 3), np.uint8)
    items = image_items(lambda: seen, seen.shape[:2], form.encoder_formats["patches"])
    assert [media_item.grid for media_item in items] == [(1, 3)]
    layout = lay_out_tokens([WORD, IMAGE, IMAGE, IMAGE, WORD], [], [()], {"patches": IMAGE})
    sample = SampleMetadata(kind="seen", layout=layout, sample_format=form, items=items).load(0)
    assert sample.layout.positions.tolist() == [[0] * 3, [1, 1, 1], [1, 1, 2], [1, 1, 3], [4] * 3]
