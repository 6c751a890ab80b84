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
from data.report.examples import decode_examples
from data.report.shown_tokens import FIRST_RUNS, LAST_RUNS, in_loss, token_runs
from data.samples.audio_format import FrameFormat
from data.samples.encoder_format import EncoderInputs, MediaItem
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from data.text.byte_tokenizer import ByteTokenizer
from data.text.hugging_face_tokenizer import HuggingFaceTokenizer, SpecialTokenNames
from data.text.prompt_format import PromptFormat
from tests.data.text.tiny_tokenizer import NAMES, byte_level_bpe, sentence_piece_bpe
from tests.small_vqa import SmallVQA


def byte_level():
    return HuggingFaceTokenizer(byte_level_bpe().to_str(), NAMES)


def sentence_piece():
    return HuggingFaceTokenizer(
        sentence_piece_bpe().to_str(), SpecialTokenNames(pad="<unk>", bos="<s>", eos="</s>", unknown="<unk>")
    )


CAPACITY = RowCapacity(tokens=1000, lengths={"patches": 1000}, images=4, samples=16)


@pytest.fixture(scope="module")
def examples():
    index = SampleIndex(SmallVQA("train", 8), SampleFormat())
    statistics = collect_statistics(index, CAPACITY, {"vqa": 1.0, "description": 1.0, "text": 1.0}, 24, seed=0)
    return decode_examples(index, statistics), index


def opened(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file))


def test_of_every_kind_the_typical_the_shortest_and_the_longest_are_taken(examples):
    shown, index = examples
    roles = {(example.kind, example.role): example for example in shown}
    for kind in ("vqa", "text"):
        lengths = [roles[kind, role].sizes["tokens"] for role in ("fewest tokens", "typical", "most tokens")]
        assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
        token_counts = [index.metadata(sample_id).sizes.tokens for sample_id in index.ids_of_kind(kind)]
        assert lengths[-1] <= max(token_counts) and lengths[0] >= min(token_counts)
    assert not any(example.problem for example in shown)


def test_every_token_of_an_example_is_shown_once_with_what_is_learned(examples):
    shown, index = examples
    for example in shown:
        layout = index.load(example.sample_id).layout
        assert [token for run in example.tokens for token in run.ids] == layout.tokens.tolist()
        learned = [run.is_target for run in example.tokens for _ in run.ids]
        assert learned == in_loss(layout).tolist() and sum(learned) == example.targets == layout.target_mask.sum()
        places = [run.position for run in example.tokens]
        assert places == sorted(places) and places[0] == 0
    vqa = next(example for example in shown if example.kind == "vqa")
    texts = {run.branch: "" for run in vqa.tokens if run.branch}
    answers = dict.fromkeys(texts, "")
    for run in vqa.tokens:
        if run.branch and run.kind == "text":
            (answers if run.is_target else texts)[run.branch] += run.text
    assert all(text.endswith("?") for text in texts.values()) and all(answers.values())
    medium = [run for run in vqa.tokens if run.kind == "medium"]
    assert [(run.text, len(run.ids), run.is_target) for run in medium] == [("vision", 16, False)]
    assert [run.text for run in vqa.tokens if run.kind == "special" and not run.branch] == ["<bos>"]
    ends = [run for run in vqa.tokens if run.text == "<eos>"]
    assert len(ends) == len(answers) and all(run.is_target for run in ends)


def test_tokens_of_text_are_single_but_for_those_of_one_character():
    tokenizer = ByteTokenizer()
    trunk = [1, *[4] * 3, *tokenizer.encode("aé\n")]
    branch = [*tokenizer.encode("b?"), 3, *tokenizer.encode("c"), 2]
    layout = lay_out_tokens(trunk, [branch], [(), range(3, 5)], {"patches": 4})
    runs = token_runs(layout, tokenizer, {"patches": "vision"})
    assert [(run.branch, run.position, run.kind, run.text, run.is_target) for run in runs] == [
        (0, 0, "special", "<bos>", False),
        (0, 1, "medium", "vision", False),
        (0, 4, "text", "a", False),
        (0, 5, "text", "é", False),
        (0, 7, "text", "\n", False),
        (1, 8, "text", "b", False),
        (1, 9, "text", "?", False),
        (1, 10, "special", "<answer>", False),
        (1, 11, "text", "c", True),
        (1, 12, "special", "<eos>", True),
    ]
    assert runs[1].ids == (4, 4, 4) and len(runs[3].ids) == 2


def test_a_character_is_not_completed_across_branches_or_the_border_of_the_loss():
    tokenizer = ByteTokenizer()
    first, second = tokenizer.encode("é")
    layout = lay_out_tokens([1, first], [[second, first, second]], [(), [2]], {})
    texts = [run.text for run in token_runs(layout, tokenizer, {})]
    assert texts == ["<bos>", *["\N{REPLACEMENT CHARACTER}"] * 4]


@pytest.mark.parametrize("tokenizer", [byte_level(), sentence_piece()], ids=["byte-level", "SentencePiece"])
def test_texts_of_tokens_of_published_tokenizers_are_the_text_when_joined(tokenizer):
    text = "What is in the picture? A red flower."
    bos, eos = tokenizer.special_tokens.bos, tokenizer.special_tokens.eos
    layout = lay_out_tokens([bos, *tokenizer.encode(text), eos], [], [[3]], {})
    runs = token_runs(layout, tokenizer, {})
    assert "".join(run.text for run in runs if run.kind == "text") == text
    assert [run.kind for run in runs].count("special") == 2 and runs[-1].text == tokenizer.special_name(eos)
    assert any(run.text == " is" for run in runs) or any(run.text.startswith(" ") for run in runs)
    assert [run.position for run in runs if run.is_target] == [3]


def test_long_samples_are_shown_from_both_ends():
    tokenizer, letters = ByteTokenizer(), 3 * (FIRST_RUNS + LAST_RUNS)
    layout = lay_out_tokens([1, *tokenizer.encode("x" * letters)], [], [[letters - 1, letters]], {})
    runs = token_runs(layout, tokenizer, {})
    assert len(runs) == FIRST_RUNS + 1 + LAST_RUNS and sum(len(run.ids) for run in runs) == letters + 1
    between = runs[FIRST_RUNS]
    assert between.kind == "left out" and len(between.ids) == letters + 1 - FIRST_RUNS - LAST_RUNS
    assert not between.is_target and [run.is_target for run in runs[-3:]] == [False, True, True]
    learned = lay_out_tokens([1, *tokenizer.encode("x" * letters)], [], [[FIRST_RUNS + 5]], {})
    assert token_runs(learned, tokenizer, {})[FIRST_RUNS].is_target


def test_pictures_are_what_the_encoder_reads_and_what_the_generator_should_make(examples):
    chosen, index = examples
    vqa = next(example for example in chosen if example.kind == "vqa")
    (media,) = vqa.media
    assert media.title == "input of vision" and media.left_out == 0 and len(media.files) == 1
    shown = np.asarray(opened(media.files[0]).convert("RGB")).astype(int)
    original = EasyVQA("train").image(vqa.sample_id)  # ids count the images in order, and vqa is the first kind
    assert shown.shape == original.shape and np.abs(shown - original).mean() < 3
    description = next(example for example in chosen if example.kind == "description")
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
