"""Clips within conversations: their tokens, the texts and delimiters between these, and clips packed beside images."""

import dataclasses

import numpy as np
import pytest

from data.data_config import RowCapacity
from data.datasets.conversations import Conversations, SampleBuilder
from data.datasets.dataset import SampleIndex
from data.datasets.from_records import from_records
from data.datasets.prompts import prompt_metadata, prompt_record
from data.errors import BadSampleError, DataError
from data.media.clips.video_sampling import VideoSampling
from data.media.images import encode_image
from data.packing.rows.packed_rows import pack_samples
from data.records import ImagePart, Media, Record, TextPart, Turn, VideoPart
from data.samples.audio_format import FrameFormat
from data.samples.image_format import PatchFormat, first_frame
from data.samples.sample_format import SampleFormat
from data.text.byte_tokenizer import ByteTokenizer
from data.text.hugging_face_tokenizer import HuggingFaceTokenizer
from data.text.prompt_format import PromptFormat
from data.text.templates.chat_template import CHAT_TEMPLATES
from data.text.video_layout import VideoLayout
from tests.clips import clip_file, frame_number
from tests.data.text.tiny_tokenizer import NAMES, byte_level_bpe

PATCHES = PatchFormat(patch=4, merge=2, max_length=256, temporal_patch=2)
FORMAT = SampleFormat((PATCHES,), None)
SAMPLING = VideoSampling(rate=3.0, min_frames=1, side=8)  # one token for each pair of frames
CLIP = VideoPart(Media("clip.mp4", content=clip_file(12, 6)))  # 2 s: 6 frames, 3 pairs
SHORT = VideoPart(Media("short.mp4", content=clip_file(6, 6)))  # 3 frames, 2 pairs
PLAIN = VideoLayout(sampling=SAMPLING)
QWEN3 = VideoLayout(sampling=SAMPLING, label="<{seconds:.1f} seconds>", delimiters="frames")
INTERNVL = VideoLayout(sampling=SAMPLING, label="Frame{number}: ", separator="\n", delimiters="frames")
BYTES = ByteTokenizer()


def record(*parts):
    parts = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    return Record("r", (Turn("user", parts), Turn("assistant", (TextPart("up"),))))


def built(record, layout=PLAIN, tokenizer=BYTES, sample_format=FORMAT):
    return SampleBuilder(CHAT_TEMPLATES["plain"], tokenizer, sample_format, None, video=layout)(record, "clips")


def spelled(outline, tokenizer=BYTES):
    """The tokens of a sample as text, placeholders as `*` and delimiters as brackets."""
    special = tokenizer.special_tokens
    signs = {special.image: "*", special.video: "+", special.image_start: "[", special.image_end: "]"}
    return "".join(signs.get(token) or tokenizer.decode([token]) for token in outline.layout.tokens.tolist())


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (PLAIN, "Look [***] which way?up"),
        (dataclasses.replace(PLAIN, delimiters="frames"), "Look [*][*][*] which way?up"),
        # Times of the frames: 0 and 2, 4 and 7, 9 and 11 of 6 a second.
        (QWEN3, "Look <0.2 seconds>[*]<0.9 seconds>[*]<1.7 seconds>[*] which way?up"),
        (INTERNVL, "Look Frame1: [*]\nFrame2: [*]\nFrame3: [*] which way?up"),
    ],
)
def test_tokens_of_a_clip_by_layout(layout, text):
    outline = built(record("Look ", CLIP, " which way?"), layout)
    assert spelled(outline) == text
    assert outline.sizes.items == {"patches": (4, 4, 4)}
    sample = outline.load(0)
    indices = sample.layout.encoder_indices["patches"]
    assert indices[indices >= 0].tolist() == [0, 1, 2]
    assert (sample.layout.tokens[indices >= 0] == BYTES.special_tokens.image).all()


def test_texts_between_frames_are_encoded_together_with_their_neighbours():
    tokenizer = HuggingFaceTokenizer(byte_level_bpe().to_str(), NAMES)
    layout = dataclasses.replace(INTERNVL, label="the picture", separator=" of a house and ")
    outline = built(record("What is in ", SHORT, " and a man?"), layout, tokenizer)
    special, tokens = tokenizer.special_tokens, outline.layout.tokens.tolist()
    frame = [special.image_start, special.image, special.image_end]
    texts = ["What is in the picture", " of a house and the picture", " and a man?"]
    first, second, last = map(tokenizer.encode, texts)
    assert tokens[: len(first) + len(second) + len(last) + 7] == [special.bos, *first, *frame, *second, *frame, *last]
    assert first != [*tokenizer.encode("What is in "), *tokenizer.encode("the picture")]


def test_frames_have_a_token_of_their_own_where_the_tokenizer_names_one():
    names = dataclasses.replace(NAMES, video="<audio>", audio=None)
    tokenizer = HuggingFaceTokenizer(byte_level_bpe().to_str(), names)
    image = ImagePart(Media("image", content=encode_image(np.full((8, 8, 3), 40, np.uint8))))
    outline = built(record(image, SHORT), tokenizer=tokenizer)
    assert "[*][++]" in spelled(outline, tokenizer)
    indices = outline.layout.encoder_indices["patches"]
    assert indices[indices >= 0].tolist() == [0, 1, 2]


def test_clips_and_images_share_rows():
    pixels = np.full((8, 16, 3), 200, np.uint8)
    rows = [
        {"image": pixels, "video": CLIP.media.content, "question": "<video> and <image>?", "answer": "up"},
        {"video": [SHORT.media.content, CLIP.media.content], "question": "Which <video>, <video>?", "answer": "down"},
        {"image": pixels, "question": "What?", "answer": "grey"},
    ]
    data = from_records(rows, video=PLAIN)
    samples = [SampleIndex(data, FORMAT).load(number) for number in range(3)]
    capacity = RowCapacity(tokens=256, lengths={"patches": 48}, samples=3)
    packed = pack_samples(samples, 1, capacity, FORMAT)
    values, item_ids, positions = (column[0] for column in packed.encoder_inputs["patches"])
    inputs = type(samples[0].encoder_inputs["patches"])(values, item_ids, positions)
    assert np.bincount(item_ids)[1:].tolist() == [4, 4, 4, 8, 4, 4, 4, 4, 4, 8]
    seen = [frame_number(first_frame(inputs, item, PATCHES)) for item in range(1, 11)]
    assert seen == [0, 4, 9, 22, 0, 5, 0, 4, 9, 22]
    indices = packed.layout.encoder_indices["patches"][0]
    assert indices[indices >= 0].tolist() == list(range(12))


def test_a_model_without_a_vision_encoder_refuses_clips():
    with pytest.raises(BadSampleError, match="it contains video, and the model has no encoder of patches"):
        built(record(CLIP), sample_format=SampleFormat((FrameFormat(),), None))


def test_an_assistant_answers_no_clip():
    record = Record("r", (Turn("user", (TextPart("Draw."),)), Turn("assistant", (CLIP,))))
    with pytest.raises(BadSampleError, match="the assistant's answer contains video, which no generator here produces"):
        built(record)


def test_damaged_clips_are_named_by_their_record():
    with pytest.raises(BadSampleError, match=r"r cannot be read \(broken.mp4: Invalid data"):
        built(record(VideoPart(Media("broken.mp4", content=b"no video"))))


def test_prompts_with_clips_are_laid_out_as_in_training():
    data = from_records([{"video": CLIP.media.content, "question": "Which way?", "answer": "up"}], video=QWEN3)
    (trained,) = data.samples_by_kind(FORMAT).values()
    saved = PromptFormat.from_json(data.prompt_format.to_json())
    prompt = prompt_record("Which way?", {"video": [CLIP.media]})
    tokens = prompt_metadata(prompt, saved, BYTES, FORMAT).layout.tokens
    assert trained[0].layout.tokens[: len(tokens)].tolist() == tokens.tolist()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"label": "<{seconds:.1f}>"}, "delimiters around the whole clip leave no place for a label"),
        ({"label": "{time}", "delimiters": "frames"}, r"label is '\{time\}'; it may contain"),
        ({"label": "{seconds", "delimiters": "frames"}, "label is"),
        ({"delimiters": "none"}, "delimiters is 'none'; choose one of frames, clip"),
    ],
)
def test_unusable_layouts_are_refused(settings, reason):
    with pytest.raises(DataError, match=reason):
        VideoLayout(**settings)


def test_the_layout_belongs_to_the_data_set():
    assert Conversations("train", video=QWEN3).prompt_format.video == QWEN3
