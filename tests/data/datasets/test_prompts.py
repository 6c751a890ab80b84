"""Prompts are laid out as training samples without the answer; placeholders and media match."""

import io

import numpy as np
import pytest
from PIL import Image

from data.datasets.easy_vqa import description_sample, text_sample, vqa_sample
from data.datasets.prompts import image_prompt_metadata, prompt_metadata, prompt_record
from data.errors import DataError
from data.media.clips.video_sampling import VideoSampling
from data.media.tilings.tiling import DynamicTiling
from data.records import AudioPart, EncoderPart, ImagePart, Media, TextPart
from data.samples.image_format import PatchFormat, image_item
from data.samples.sample_format import SampleFormat, TargetImageFormat
from data.text.prompt_format import PromptFormat
from data.text.video_layout import VideoLayout
from data.text.word_tokenizer import WordTokenizer

TOKENIZER = WordTokenizer(("blue", "circle", "is", "it", "what", "?"))
FORM = SampleFormat(
    (PatchFormat(patch=2, merge=2, max_length=16),), target_images=TargetImageFormat(size=4, conditions=3)
)


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


def test_a_prompt_is_a_training_sample_without_its_answer():
    asking = prompt_metadata(prompt_record("what is it?", {"image": [SEEN]}), PromptFormat(), TOKENIZER, FORM)
    picture = image_item(lambda: PIXELS, PIXELS.shape[:2], FORM.encoder_formats["patches"])
    full = vqa_sample(picture, [("what is it?", "circle")], TOKENIZER, FORM)
    assert same_start(asking, full, left=2)
    assert not asking.layout.target_mask.any()
    patches = (outline.load(0).encoder_inputs["patches"].values for outline in (asking, full))
    np.testing.assert_array_equal(*patches)


def test_prompts_without_an_image():
    asking = prompt_metadata(prompt_record("what is it?"), PromptFormat(), TOKENIZER, FORM)
    assert same_start(asking, text_sample("what is it?", "circle", TOKENIZER, FORM), left=2)


def test_image_prompts_are_descriptions_with_an_empty_target_image():
    drawn = image_prompt_metadata(prompt_record("blue circle"), PromptFormat(), TOKENIZER, FORM).load(3)
    full = description_sample("blue circle", lambda: np.ones((4, 4, 3), np.float32), TOKENIZER, FORM).load(3)
    assert same_start(drawn, full, left=0)
    np.testing.assert_array_equal(drawn.condition_positions, full.condition_positions)
    assert drawn.target_images.shape == full.target_images.shape and not drawn.target_images.any()


def test_media_are_placed_at_their_marks_or_in_front():
    first, second, clip = (Media(name) for name in ("first", "second", "clip"))
    media = {"audio": [clip], "image": [first, second]}
    (turn,) = prompt_record("is <image> or <audio> like <image>?", media).turns
    texts = [part.text if isinstance(part, TextPart) else part.media.where for part in turn.parts]
    assert texts == ["is ", "first", " or ", "clip", " like ", "second", "?"]
    assert [type(part) for part in turn.parts[1::2]] == [ImagePart, AudioPart, ImagePart]
    (turn,) = prompt_record("which <audio>?", media).turns
    assert [type(part) for part in turn.parts] == [ImagePart, ImagePart, TextPart, AudioPart, TextPart]
    (turn,) = prompt_record("", {"image": [first]}).turns
    assert [type(part) for part in turn.parts] == [ImagePart]


def test_files_of_other_encoders_have_placeholders_of_their_own():
    first, second, seen = (Media(name) for name in ("first", "second", "seen"))
    media = {"windows": [first, second], "image": [seen]}
    (turn,) = prompt_record("<windows>, then <windows>?", media).turns
    parts = (ImagePart(seen), EncoderPart(first, "windows"), TextPart(", then "), EncoderPart(second, "windows"))
    assert turn.parts == (*parts, TextPart("?"))
    (turn,) = prompt_record("<image> <points>", media).turns  # without a placeholder of their own, in front
    assert turn.parts == (*parts[1::2], ImagePart(seen), TextPart(" <points>"))
    with pytest.raises(DataError, match="1 <windows> placeholders and 2 files of windows come with it"):
        prompt_record("<windows>", media)


@pytest.mark.parametrize(
    ("text", "pictures", "clips", "message"),
    [
        ("what is <image>?", 0, 0, "1 <image> placeholders and 0 images come with it"),
        ("<image> <image>", 1, 0, "2 <image> placeholders and 1 images"),
        ("hear <audio>", 1, 2, "1 <audio> placeholders and 2 audio clips"),
        ("  ", 0, 0, "is empty"),
    ],
)
def test_marks_without_media_are_refused(text, pictures, clips, message):
    with pytest.raises(DataError, match=message):
        prompt_record(text, {"image": [SEEN] * pictures, "audio": [SEEN] * clips})


@pytest.mark.parametrize(
    "prompting",
    [
        PromptFormat(),
        PromptFormat("chatml", "chatml", DynamicTiling(tile_size=8, max_tiles=4)),
        PromptFormat(
            video=VideoLayout(sampling=VideoSampling(rate=1.5, side=16), label="<{seconds:.1f}>", delimiters="frames")
        ),
    ],
)
def test_prompt_formats_are_written_and_read(prompting):
    assert PromptFormat.from_json(prompting.to_json()) == prompting


def test_other_texts_are_refused_as_prompt_formats():
    with pytest.raises(DataError, match="PromptFormat.to_json"):
        PromptFormat.from_json('{"template": "plain"}')
