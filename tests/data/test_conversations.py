"""Records become samples: texts by a template, media as placeholders whose number the header tells."""

import json

import numpy as np
import pytest
import soundfile
from PIL import Image

from data.chat import TEMPLATES
from data.conversations import Builder, Conversations
from data.errors import BadSampleError, DataError
from data.formats import DrawingFormat, FrameFormat, PatchFormat, SampleFormat
from data.records import Clip, Media, Picture, Record, Text, Turn
from data.source import Catalogue, Source
from data.sources.llava import LlavaJson
from data.tiling import Tiles
from data.tokenizers.byte_level import ByteTokenizer
from tests.data.real_data import photographs

TOKENIZER = ByteTokenizer()
SPECIAL = TOKENIZER.special
FORM = SampleFormat(
    PatchFormat("vision", 4, 2, 256), FrameFormat("audio", 8, 5, 1000), DrawingFormat("generator", 16, 3)
)


def builder(tiling=None, form=FORM):
    return Builder(TEMPLATES["question"], TOKENIZER, form, tiling)


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "flower.png"
    Image.fromarray(photographs()["flower.jpg"]).resize((64, 43)).save(path)
    return Picture(Media.file(path))


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "tone.wav"
    soundfile.write(path, np.sin(np.arange(32 * 8000) / 3).astype(np.float32), 8000)  # 32 s: two pieces of 16
    return Clip(Media.file(path))


def record(*asked, said=("yes",)):
    def parts(content):
        return tuple(Text(part) if isinstance(part, str) else part for part in content)

    return Record("r1", (Turn("user", parts(asked)), Turn("assistant", parts(said))))


def check_sizes(outline):
    """What the header promised is what is decoded."""
    sample = outline.load(7)
    sizes = outline.sizes
    assert sample.sizes == {name: getattr(sizes, name) for name in ("tokens", "patches", "frames", "images")}
    for field, form in FORM.streams.items():
        if field in sample.layout.indices:
            cells = np.sort(sample.layout.indices[field][sample.layout.indices[field] >= 0])
            assert cells.tolist() == list(range(len(sample.streams[field].values) // form.cell))
    return sample


def test_an_image_stands_where_it_is_shown_between_its_delimiters(picture):
    sample = check_sizes(builder()(record("look ", picture, " well"), "seen"))
    tokens = sample.layout.tokens.tolist()
    cells = (43 // 8) * (64 // 8)
    shown = [SPECIAL.image_start, *[SPECIAL.image] * cells, SPECIAL.image_end]
    look, well, yes = (TOKENIZER.encode(text) for text in ("look ", " well", "yes"))
    assert tokens == [SPECIAL.bos, *look, *shown, *well, SPECIAL.answer, *yes, SPECIAL.eos]
    target = sample.layout.targets[sample.layout.target_mask > 0].tolist()
    assert target == [*yes, SPECIAL.eos] and (sample.id, sample.kind) == (7, "seen")


def test_tiles_are_images_of_their_own_with_a_thumbnail(picture):
    outline = builder(Tiles(tile=16, least=2, most=2))(record(picture), "seen")
    assert [item.length for item in outline.items] == [16] * 3
    sample = check_sizes(outline)
    assert sample.streams["patches"].items.tolist() == [1] * 16 + [2] * 16 + [3] * 16
    assert outline.sizes.patch_squares == 3 * 16**2


def test_a_long_clip_is_heard_in_pieces(clip):
    outline = builder()(record(clip, "what is it?"), "heard")
    assert [item.length for item in outline.items] == [1600, 1600]
    sample = check_sizes(outline)
    assert sample.streams["frames"].positions.tolist() == [*range(800)] * 2
    assert outline.sizes.frame_squares == 2 * 800**2
    assert (sample.layout.tokens == SPECIAL.audio).sum() == 2 * 160


def test_an_image_that_the_assistant_shows_is_generated(picture):
    sample = check_sizes(builder()(record("a flower", said=(picture,)), "drawn"))
    assert sample.images.shape == (1, 16, 16, 3) and abs(sample.images).max() <= 1
    assert (sample.layout.tokens[sample.conditions[0]] == SPECIAL.generate).all()
    assert not sample.streams["patches"].values.size


def test_a_model_without_the_module_refuses_the_record(picture, clip):
    blind = SampleFormat(None, None, None)
    for refused, message in (
        (record(picture), "no vision encoder"),
        (record(clip), "no audio encoder"),
        (record("draw", said=(picture,)), "no generator"),
    ):
        with pytest.raises(BadSampleError, match=f"r1 cannot be read .*{message}"):
            builder(form=blind)(refused, "any")
    assert builder(form=blind)(record("only words"), "any").sizes.patches == 0


def test_what_cannot_be_decoded_is_named_by_its_record(tmp_path, picture):
    cut = tmp_path / "cut.png"
    whole = (tmp_path / "flower.png").read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    outline = builder()(record(Picture(Media.file(cut))), "seen")  # its header is whole
    with pytest.raises(BadSampleError, match=r"r1 cannot be read \(.*cut.png: .*truncated"):
        outline.load(0)
    with pytest.raises(BadSampleError, match=r"r1 cannot be read \(.*gone.png"):
        builder()(record(Picture(Media.file(tmp_path / "gone.png"))), "seen")


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


def test_a_mixture_of_sources_is_a_source_of_kinds(llava):
    source = Conversations("train", train=(("talk", llava), ("again", llava)))
    assert isinstance(source, Source) and source.judged == ("talk", "again")
    catalogue = Catalogue(source, FORM)
    assert catalogue.counts == {"talk": 6, "again": 6} and catalogue.kind(7) == "again"
    for number in range(12):
        check_sizes(catalogue.outline(number))
    assert Conversations("test", train=source.train).judged == ()


def test_neighbours_are_joined_up_to_a_length(llava):
    alone = Conversations("train", train=(("talk", llava),)).datasets(FORM)["talk"]
    lengths = [alone[number].sizes.tokens for number in range(6)]
    limit = sum(lengths[:3])
    together = Conversations("train", train=(("talk", llava),), join=limit).datasets(FORM)["talk"]
    runs = np.diff(together.starts).tolist()
    assert runs[0] == 3 and sum(runs) == 6 and max(len(together[n].layout.tokens) for n in range(len(runs))) <= limit
    text = TOKENIZER.decode(together[0].layout.tokens)
    assert text.count("an answer") == 3
    check_sizes(together[0])


def test_one_that_cannot_be_used_is_joined_to_none(llava, tmp_path):
    (tmp_path / "flower.png").write_bytes(b"no picture")
    together = Conversations("train", train=(("talk", llava),), join=10_000).datasets(FORM)["talk"]
    assert np.diff(together.starts).tolist() == [1] * 6
    with pytest.raises(BadSampleError, match=r"data.json\[1\]"):
        together[1]


def test_a_name_given_twice_is_refused(llava):
    with pytest.raises(DataError, match="names talk, talk; give each source a name of its own"):
        Conversations("train", train=(("talk", llava), ("talk", llava)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "validation"}, "choose one of train, test"),
        ({"template": "poem"}, "choose one of plain, question"),
        ({"template": "llama3"}, "start_header_id"),
        ({"join": -1}, "join is -1"),
    ],
)
def test_a_bad_setting_is_refused_at_start(settings, message):
    with pytest.raises(DataError, match=message):
        Conversations(**{"split": "train", **settings})
