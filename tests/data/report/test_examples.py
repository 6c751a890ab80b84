"""Examples of easy-VQA's and of spoken samples: which are taken, their text, and their media as files."""

import io

import numpy as np
import pytest
from PIL import Image

from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.datasets.easy_vqa import EasyVQA
from data.errors import BadSampleError
from data.report.dataset_statistics import collect_statistics
from data.report.examples import TextRun, decode_examples, shortened, text_runs
from data.samples.audio_format import FrameFormat
from data.samples.encoder_format import EncoderInputs, MediaItem
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from data.text.byte_tokenizer import ByteTokenizer
from data.text.prompt_format import PromptFormat
from tests.small_vqa import SmallVQA

CAPACITY = RowCapacity(tokens=1000, lengths={"patches": 1000}, images=4, samples=16)


@pytest.fixture(scope="module")
def examples():
    index = SampleIndex(SmallVQA("train", 8), SampleFormat())
    statistics = collect_statistics(index, CAPACITY, {"vqa": 1.0, "description": 1.0, "text": 1.0}, 24, seed=0)
    return decode_examples(index, statistics), index


def opened(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file))


def test_of_every_kind_the_typical_the_shortest_and_the_longest_are_taken(examples):
    found, index = examples
    roles = {(each.kind, each.role): each for each in found}
    for kind in ("vqa", "text"):
        lengths = [roles[kind, role].sizes["tokens"] for role in ("fewest tokens", "typical", "most tokens")]
        assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
        of_kind = [index.metadata(sample_id).sizes.tokens for sample_id in index.ids_of_kind(kind)]
        assert lengths[-1] <= max(of_kind) and lengths[0] >= min(of_kind)
    assert not any(each.problem for each in found)


def test_text_is_divided_into_what_is_given_and_what_is_learned(examples):
    found, _ = examples
    vqa = next(each for each in found if each.kind == "vqa")
    questions, answers = ([run for run in vqa.text if run.is_target is learned] for learned in (False, True))
    assert len(questions) == len(answers) and {run.branch for run in vqa.text} == set(range(1, len(questions) + 1))
    assert all(run.text.endswith("?") for run in questions) and all(" " not in run.text for run in answers)
    tokenizer = ByteTokenizer()
    trunk, branch = [1, *tokenizer.encode("one")], tokenizer.encode("two?yes.")
    layout = lay_out_tokens(trunk, [branch, tokenizer.encode("three")], [(), range(4, 7), ()], {})
    assert list(text_runs(layout, tokenizer)) == [
        TextRun(0, "one", False),
        TextRun(1, "two?", False),
        TextRun(1, "yes", True),
        TextRun(1, ".", False),
        TextRun(2, "three", False),
    ]


def test_long_texts_are_shortened_with_an_ellipsis():
    runs = [TextRun(0, "a" * 300, False), TextRun(0, "b" * 300, True), TextRun(0, "c", True)]
    found = list(shortened(iter(runs)))
    assert [len(run.text) for run in found] == [300, 102] and found[-1].text.endswith("b …")


def test_pictures_are_what_the_encoder_reads_and_what_the_generator_should_make(examples):
    found, index = examples
    vqa = next(each for each in found if each.kind == "vqa")
    (media,) = vqa.media
    assert media.title == "input of vision" and media.left_out == 0 and len(media.files) == 1
    shown = np.asarray(opened(media.files[0]).convert("RGB")).astype(int)
    original = EasyVQA("train").image(vqa.sample_id)  # ids count the images in order, and vqa is the first kind
    assert shown.shape == original.shape and np.abs(shown - original).mean() < 3
    description = next(each for each in found if each.kind == "description")
    assert [media.title for media in description.media] == ["to generate"]
    assert max(opened(description.media[0].files[0]).size) >= 64  # 32 pixels, enlarged


class Clips:
    """A sample with two clips, and one of which they cannot be decoded."""

    tokenizer, evaluated_kinds, prompt_format = ByteTokenizer(), (), PromptFormat()

    def samples_by_kind(self, form):
        return {"clip": [self._sample(form, False)], "damaged": [self._sample(form, True)]}

    def _sample(self, form, damaged):
        def load():
            if damaged:
                raise BadSampleError("b.flac", "cut in the middle")
            values = np.tile(np.linspace(-1, 1, 80, dtype=np.float32), (40, 1))
            return EncoderInputs(values, np.ones(20, np.int32), np.arange(20, dtype=np.int32))

        layout = lay_out_tokens([1, *[6] * 20, 100], [], [()], {"frames": 6})
        items = [MediaItem("frames", 40, load, "clip") for _ in range(2)]
        return SampleMetadata(kind="damaged" if damaged else "clip", layout=layout, sample_format=form, items=items)


def test_audio_becomes_spectrograms_and_damaged_media_are_named():
    index = SampleIndex(Clips(), SampleFormat((FrameFormat(),), None))
    shares = {"clip": 1.0, "damaged": 1.0}
    capacity = RowCapacity(tokens=100, lengths={"frames": 1000}, samples=4)
    statistics = collect_statistics(index, capacity, shares, 2, seed=0)
    clip, damaged = decode_examples(index, statistics)
    assert (damaged.problem, damaged.media) == ("cut in the middle", ())
    (media,) = clip.media
    assert media.title == "input of audio" and len(media.files) == 2
    levels = np.asarray(opened(media.files[0]).convert("L")).astype(int)
    assert levels[0].mean() > 250 and levels[-1].mean() < 5  # high frequencies are above
