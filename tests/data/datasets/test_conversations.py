"""Records become samples: texts by a chat template, media as placeholders counted from headers."""

import dataclasses
import json
from typing import ClassVar

import numpy as np
import pytest
import soundfile
from PIL import Image

from data.datasets.conversations import Conversations, SampleBuilder
from data.datasets.dataset import Dataset, SampleIndex
from data.errors import BadSampleError, DataError
from data.media.tilings.tiling import DynamicTiling
from data.records import AudioPart, ImagePart, Media, Record, TextPart, Turn
from data.samples.audio_format import FrameFormat
from data.samples.encoder_format import EncoderFormat
from data.samples.image_format import PatchFormat
from data.samples.sample_format import SampleFormat, TargetImageFormat
from data.sources.llava import LlavaJson
from data.text.byte_tokenizer import ByteTokenizer
from data.text.templates.chat_template import CHAT_TEMPLATES
from tests.data.real_data import photographs

TOKENIZER = ByteTokenizer()
SPECIAL = TOKENIZER.special_tokens
FORM = SampleFormat(
    (
        PatchFormat(module="vision", patch=4, merge=2, max_length=256),
        FrameFormat(module="audio", mels=8, merge=5, max_length=1000),
    ),
    TargetImageFormat("generator", 16, 3),
)


class PointFormat(EncoderFormat):
    """Inputs of an encoder of another kind, which has the special token of images as long as none is set."""

    field: ClassVar[str] = "points"
    value_width = property(lambda self: 3)
    values_per_token = property(lambda self: 1)


def builder(tiling=None, form=FORM):
    return SampleBuilder(CHAT_TEMPLATES["question"], TOKENIZER, form, tiling)


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "flower.png"
    Image.fromarray(photographs()["flower.jpg"]).resize((64, 43)).save(path)
    return ImagePart(Media.from_file(path))


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "tone.wav"
    soundfile.write(path, np.sin(np.arange(32 * 8000) / 3).astype(np.float32), 8000)  # 32 s: two pieces of 16
    return AudioPart(Media.from_file(path))


def record(*asked, said=("yes",)):
    def parts(content):
        return tuple(TextPart(part) if isinstance(part, str) else part for part in content)

    return Record("r1", (Turn("user", parts(asked)), Turn("assistant", parts(said))))


def check_sizes(outline):
    """What the header promised is what is decoded."""
    sample = outline.load(7)
    sizes = outline.sizes
    assert sample.sizes == sizes.row_units
    for field, form in FORM.encoder_formats.items():
        if field in sample.layout.encoder_indices:
            cells = np.sort(sample.layout.encoder_indices[field][sample.layout.encoder_indices[field] >= 0])
            assert cells.tolist() == list(range(len(sample.encoder_inputs[field].values) // form.values_per_token))
    return sample


def test_images_are_placed_where_they_stand_between_delimiters(picture):
    sample = check_sizes(builder()(record("look ", picture, " well"), "seen"))
    tokens = sample.layout.tokens.tolist()
    cells = (43 // 8) * (64 // 8)
    shown = [SPECIAL.image_start, *[SPECIAL.image] * cells, SPECIAL.image_end]
    look, well, yes = (TOKENIZER.encode(text) for text in ("look ", " well", "yes"))
    assert tokens == [SPECIAL.bos, *look, *shown, *well, SPECIAL.answer, *yes, SPECIAL.eos]
    target = sample.layout.targets[sample.layout.target_mask > 0].tolist()
    assert target == [*yes, SPECIAL.eos] and (sample.id, sample.kind) == (7, "seen")


def test_tiles_and_thumbnail_are_separate_images(picture):
    outline = builder(DynamicTiling(tile_size=16, min_tiles=2, max_tiles=2))(record(picture), "seen")
    assert [item.length for item in outline.items] == [16] * 3
    sample = check_sizes(outline)
    assert sample.encoder_inputs["patches"].item_ids.tolist() == [1] * 16 + [2] * 16 + [3] * 16
    assert outline.sizes.items["patches"] == (16, 16, 16)


def test_long_clips_are_split_into_chunks(clip):
    outline = builder()(record(clip, "what is it?"), "heard")
    assert [item.length for item in outline.items] == [1600, 1600]
    sample = check_sizes(outline)
    assert sample.encoder_inputs["frames"].positions.tolist() == [*range(800)] * 2
    assert outline.sizes.items["frames"] == (1600, 1600)
    assert (sample.layout.tokens == SPECIAL.audio).sum() == 2 * 160


def test_images_of_the_assistant_are_generated(picture):
    sample = check_sizes(builder()(record("a flower", said=(picture,)), "drawn"))
    assert sample.target_images.shape == (1, 16, 16, 3) and abs(sample.target_images).max() <= 1
    assert (sample.layout.tokens[sample.condition_positions[0]] == SPECIAL.generate).all()
    assert not sample.encoder_inputs["patches"].values.size


def test_records_for_missing_modules_are_refused(picture, clip):
    blind = SampleFormat((), None)
    for refused, message in (
        (record(picture), "no encoder of patches"),
        (record(clip), "no encoder of frames"),
        (record("draw", said=(picture,)), "no generator"),
    ):
        with pytest.raises(BadSampleError, match=f"r1 cannot be read .*{message}"):
            builder(form=blind)(refused, "any")
    assert builder(form=blind)(record("only words"), "any").sizes.lengths == {}


def test_two_encoders_of_one_placeholder_token_are_refused(llava):
    form = dataclasses.replace(FORM, encoders=(*FORM.encoders, PointFormat(module="lidar", max_length=8)))
    message = "outputs of vision and of lidar both .* token for 'image'; set PointFormat.special_token"
    with pytest.raises(DataError, match=message) as caught:
        Conversations("train", train=(("talk", llava),)).samples_by_kind(form)
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=message):
        builder(form=form)


def test_undecodable_media_are_named_after_their_record(tmp_path, picture):
    cut = tmp_path / "cut.png"
    whole = (tmp_path / "flower.png").read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    outline = builder()(record(ImagePart(Media.from_file(cut))), "seen")  # its header is whole
    with pytest.raises(BadSampleError, match=r"r1 cannot be read \(.*cut.png: .*truncated"):
        outline.load(0)
    with pytest.raises(BadSampleError, match=r"r1 cannot be read \(.*gone.png"):
        builder()(record(ImagePart(Media.from_file(tmp_path / "gone.png"))), "seen")


@pytest.fixture
def llava(tmp_path, picture):
    entries = [
        {
            "id": str(number),
            **({"image": "flower.png"} if number % 2 else {}),
            "conversations": [
                {"from": "human", "value": ("<image>\n" if number % 2 else "") + "x" * (number + 1)},
                {"from": "gpt", "value": "an answer"},
            ],
        }
        for number in range(6)
    ]
    (tmp_path / "data.json").write_text(json.dumps(entries))
    return LlavaJson(str(tmp_path / "data.json"), str(tmp_path))


def test_every_source_is_a_kind(llava):
    source = Conversations(split="train", train=(("talk", llava), ("again", llava)))
    assert isinstance(source, Dataset) and source.evaluated_kinds == ("talk", "again")
    catalogue = SampleIndex(source, FORM)
    assert catalogue.counts == {"talk": 6, "again": 6} and catalogue.kind_of(7) == "again"
    for number in range(12):
        check_sizes(catalogue.metadata(number))
    assert Conversations(split="test", train=source.train).evaluated_kinds == ()


def test_consecutive_records_are_joined_up_to_a_length(llava):
    alone = Conversations(split="train", train=(("talk", llava),)).samples_by_kind(FORM)["talk"]
    lengths = [alone[number].sizes.tokens for number in range(6)]
    limit = sum(lengths[:3])
    together = Conversations(split="train", train=(("talk", llava),), join_tokens=limit).samples_by_kind(FORM)["talk"]
    runs = np.diff(together.starts).tolist()
    assert runs[0] == 3 and sum(runs) == 6 and max(len(together[n].layout.tokens) for n in range(len(runs))) <= limit
    text = TOKENIZER.decode(together[0].layout.tokens)
    assert text.count("an answer") == 3
    check_sizes(together[0])


def test_unusable_records_are_not_joined(llava, tmp_path):
    (tmp_path / "flower.png").write_bytes(b"no picture")
    together = Conversations(split="train", train=(("talk", llava),), join_tokens=10_000).samples_by_kind(FORM)["talk"]
    assert np.diff(together.starts).tolist() == [1] * 6
    with pytest.raises(BadSampleError, match=r"data.json\[1\]"):
        together[1]


def test_repeated_source_names_are_refused(llava):
    with pytest.raises(DataError, match="names talk, talk; give each source a name of its own"):
        Conversations(split="train", train=(("talk", llava), ("talk", llava)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "validation"}, "choose one of train, test"),
        ({"template": "poem"}, "choose one of plain, question"),
        ({"template": "llama3"}, "start_header_id"),
        ({"join_tokens": -1}, "join_tokens is -1"),
    ],
)
def test_invalid_settings_are_refused_at_start(settings, message):
    with pytest.raises(DataError, match=message):
        Conversations(**{"split": "train", **settings})
