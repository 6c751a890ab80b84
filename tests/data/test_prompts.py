"""Prompts of trained models: what their samples were, without what is asked for; marks and media that go together."""

import io

import numpy as np
import pytest
from PIL import Image

from data.errors import DataError
from data.formats import DrawingFormat, PatchFormat, SampleFormat
from data.items import picture_item
from data.prompting import Prompting
from data.prompts import asked, drawing_outline, prompt_outline
from data.questions import description_sample, text_sample, vqa_sample
from data.records import Clip, Media, Picture, Text
from data.tiling import Tiles
from data.tokenizer import WordTokenizer

TOKENIZER = WordTokenizer(("blue", "circle", "is", "it", "what", "?"))
FORM = SampleFormat(PatchFormat(patch=2, merge=2, most=16), drawing=DrawingFormat(size=4, conditions=3))


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


PIXELS = np.random.default_rng(0).integers(0, 256, (8, 4, 3)).astype(np.uint8)
SEEN = Media("seen.png", content=png(PIXELS))
COLUMNS = ("tokens", "positions")


def same_start(prompt, full, left: int) -> bool:
    return all(
        getattr(prompt.layout, name).tolist() == getattr(full.layout, name)[: len(full.layout.tokens) - left].tolist()
        for name in COLUMNS
    )


def test_a_prompt_is_a_sample_without_its_answer():
    asking = prompt_outline(asked("what is it?", [SEEN]), Prompting(), TOKENIZER, FORM)
    picture = picture_item(lambda: PIXELS, PIXELS.shape[:2], FORM)
    full = vqa_sample(picture, [("what is it?", "circle")], TOKENIZER, FORM)
    assert same_start(asking, full, left=2)
    assert not asking.layout.target_mask.any()
    patches = (of.load(0).streams["patches"].values for of in (asking, full))
    np.testing.assert_array_equal(*patches)


def test_a_prompt_without_a_picture_is_one_too():
    asking = prompt_outline(asked("what is it?"), Prompting(), TOKENIZER, FORM)
    assert same_start(asking, text_sample("what is it?", "circle", TOKENIZER, FORM), left=2)


def test_what_is_to_be_drawn_is_a_description_with_room_for_its_picture():
    drawn = drawing_outline(asked("blue circle"), Prompting(), TOKENIZER, FORM).load(3)
    full = description_sample("blue circle", lambda: np.ones((4, 4, 3), np.float32), TOKENIZER, FORM).load(3)
    assert same_start(drawn, full, left=0)
    np.testing.assert_array_equal(drawn.conditions, full.conditions)
    assert drawn.images.shape == full.images.shape and not drawn.images.any()


def test_media_stand_at_their_marks_or_in_front():
    first, second, clip = (Media(name) for name in ("first", "second", "clip"))
    (turn,) = asked("is <image> or <audio> like <image>?", [first, second], [clip]).turns
    texts = [part.text if isinstance(part, Text) else part.media.where for part in turn.parts]
    assert texts == ["is ", "first", " or ", "clip", " like ", "second", "?"]
    assert [type(part) for part in turn.parts[1::2]] == [Picture, Clip, Picture]
    (turn,) = asked("which <audio>?", [first, second], [clip]).turns
    assert [type(part) for part in turn.parts] == [Picture, Picture, Text, Clip, Text]
    (turn,) = asked("", [first]).turns
    assert [type(part) for part in turn.parts] == [Picture]


@pytest.mark.parametrize(
    ("text", "pictures", "clips", "message"),
    [
        ("what is <image>?", 0, 0, "1 <image> marks and 0 pictures come with it"),
        ("<image> <image>", 1, 0, "2 <image> marks and 1 picture"),
        ("hear <audio>", 1, 2, "1 <audio> marks and 2 clips"),
        ("  ", 0, 0, "has no word"),
    ],
)
def test_marks_without_media_are_refused(text, pictures, clips, message):
    with pytest.raises(DataError, match=message):
        asked(text, [SEEN] * pictures, [SEEN] * clips)


@pytest.mark.parametrize("prompting", [Prompting(), Prompting("chatml", "chatml", Tiles(tile=8, most=4))])
def test_prompting_is_written_and_read(prompting):
    assert Prompting.from_json(prompting.to_json()) == prompting


def test_another_text_is_no_prompting():
    with pytest.raises(DataError, match="Prompting.to_json"):
        Prompting.from_json('{"template": "plain"}')
