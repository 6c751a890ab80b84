import collections
import dataclasses
import json
import shutil

import numpy as np
import pytest

from data.datasets.dataset import Dataset
from data.datasets.easy_vqa import EasyVQA
from data.datasets.spoken_clips import MANIFEST, read_spoken_clips, write_spoken_clips
from data.datasets.spoken_easy_vqa import SpokenEasyVQA
from data.errors import BadSampleError, DataError
from data.media.sound.audio import read_audio
from data.media.sound.mel import log_mel
from data.records import Media
from data.samples.audio_format import FrameFormat
from data.samples.image_format import PatchFormat
from data.samples.sample_format import SampleFormat
from data.text.word_tokenizer import ANSWER, BOS, EOS, IMAGE
from tests.data.real_data import espeak
from tests.tones import VOICES, write_tones

FORM = SampleFormat((PatchFormat(), FrameFormat(mels=8, merge=2, max_length=400)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    write_tones(folder)
    return str(folder)


@pytest.fixture(scope="module")
def train(folder):
    return SpokenEasyVQA("train", folder)


@pytest.fixture(scope="module")
def held_out(folder):
    return SpokenEasyVQA("test", folder)


@pytest.fixture(scope="module")
def easy_vqa():
    return EasyVQA("test")


def test_every_question_about_every_image_is_spoken_once(held_out, easy_vqa):
    assert isinstance(held_out, Dataset) and held_out.evaluated_kinds == ("spoken_vqa",)
    samples = held_out.samples_by_kind(FORM)["spoken_vqa"]
    asked = [len(easy_vqa.pairs[image_id]) for image_id in easy_vqa.image_ids]
    assert len(samples) == sum(-(-questions // 4) for questions in asked)
    place = 0
    for questions in asked[:6]:
        here = range(place, place + -(-questions // 4))
        assert [int(samples[index].layout.branches.max()) for index in here] == [
            min(4, questions - first) for first in range(0, questions, 4)
        ]
        place = here.stop


def test_splits_share_no_voice(train, held_out):
    voices = [{clip.voice for clips in source.clips.values() for clip in clips} for source in (train, held_out)]
    assert voices == [set(VOICES["train"]), set(VOICES["test"])]


def test_clips_of_a_question_take_turns(train):
    times = collections.Counter(clip.file for _, asked in train._spoken_questions for clip, _ in asked)
    for clips in train.clips.values():
        assert len(clips) == 4  # two voices at two speeds
        counts = [times[clip.file] for clip in clips]
        assert max(counts) - min(counts) <= 1


def expected_frames(folder, clip):
    return log_mel(read_audio(Media.from_file(f"{folder}/{clip.file}")), 8, 4)


def test_samples_contain_an_image_clips_and_answers_but_no_question_words(folder, held_out, easy_vqa):
    """Laid out again by hand: what each token is, which clip it stands for, and where the loss is."""
    pairs = easy_vqa.pairs[easy_vqa.image_ids[0]][:4]
    sample = held_out.samples_by_kind(FORM)["spoken_vqa"][0].load(7)
    layout, frames = sample.layout, sample.encoder_inputs["frames"]
    encode, audio = held_out.tokenizer.encode, held_out.tokenizer.special_tokens.audio
    turns, tokens, losses, values = [], [BOS, *[IMAGE] * 16], [0] * 17, []
    times = collections.Counter()
    for question, answer in pairs:
        clip = held_out.clips[question][times[question]]
        times[question] += 1
        values.append(expected_frames(folder, clip))
        merged = len(values[-1]) // 4
        tokens += [*[audio] * merged, ANSWER, *encode(answer), EOS]
        losses += [*[0] * merged, *[1] * (len(encode(answer)) + 1), 0]
        turns += [merged]
    assert layout.tokens.tolist() == tokens and layout.target_mask.tolist() == losses
    np.testing.assert_array_equal(frames.values, np.concatenate(values))
    assert layout.encoder_indices["frames"][layout.tokens == audio].tolist() == list(range(sum(turns)))
    assert frames.item_ids.tolist() == np.repeat(np.arange(4) + 1, np.multiply(turns, 2)).tolist()
    assert sum(len(encode(word)) for question, _ in pairs for word in question.split()) > 16
    unsaid = set(encode(" ".join(question for question, _ in pairs))) - set(encode(" ".join(a for _, a in pairs)))
    assert unsaid.isdisjoint(layout.tokens.tolist())


def test_layout_of_a_transcription(folder, train):
    samples = train.samples_by_kind(FORM)["transcription"]
    clips = [clip for clips in train.clips.values() for clip in clips]
    assert len(samples) == len(clips) == 107 * 4
    clip = next(clip for clip in clips if clip.voice == "low" and clip.speed == 150)
    (index,) = [index for index in range(214) if samples[index].items[0].where.endswith(clip.file)]
    sample = samples[index].load(0)
    merged, words = len(expected_frames(folder, clip)) // 4, train.tokenizer.encode(clip.text)
    assert sample.layout.tokens.tolist() == [BOS, *[train.tokenizer.special_tokens.audio] * merged, ANSWER, *words, EOS]
    assert sample.layout.target_mask.tolist() == [*[0] * (merged + 1), *[1] * (len(words) + 1), 0]


@pytest.mark.parametrize("kind", ["spoken_vqa", "transcription", "vqa", "description", "text"])
def test_loaded_samples_have_the_planned_sizes(train, kind):
    samples = train.samples_by_kind(FORM)[kind]
    for index in (0, 1, len(samples) - 1):
        outline = samples[index]
        sample = outline.load(index)
        planned = outline.sizes
        assert sample.sizes == {name: planned.row_units[name] for name in sample.sizes}
        assert planned.lengths["frames"] == sample.encoder_inputs["frames"].values.shape[0]
        # What was kept is what was made.
        again = samples[index].load(index)
        np.testing.assert_array_equal(again.encoder_inputs["frames"].values, sample.encoder_inputs["frames"].values)


def test_words_keep_their_ids_with_an_audio_token(train, easy_vqa):
    assert train.tokenizer.words == easy_vqa.tokenizer.words
    assert train.tokenizer.vocabulary_size == easy_vqa.tokenizer.vocabulary_size + 1
    text = "what color is the circle? blue"
    assert train.tokenizer.encode(text) == easy_vqa.tokenizer.encode(text)


def test_kinds_of_missing_modules_are_left_out(train):
    assert set(train.samples_by_kind(SampleFormat())) == {"vqa", "description", "text"}
    assert set(train.samples_by_kind(SampleFormat(FORM.encoders[1:], None))) == {"transcription", "text"}


def test_clips_that_differ_from_the_manifest_are_bad_samples(tmp_path, folder):
    """One file is cut, and the manifest promises more of the next than there is."""
    shutil.copytree(folder, tmp_path / "speech")
    clips = read_spoken_clips(folder, "train")
    (tmp_path / "speech" / clips[0].file).write_bytes(b"fLaC")
    line = json.dumps(dataclasses.asdict(clips[1]))
    longer = json.dumps(dataclasses.asdict(clips[1]) | {"samples": 9600})
    manifest = tmp_path / "speech" / MANIFEST
    manifest.write_text(manifest.read_text().replace(line, longer))
    samples = SpokenEasyVQA("train", str(tmp_path / "speech")).samples_by_kind(FORM)["transcription"]
    with pytest.raises(BadSampleError, match=clips[0].file):
        samples[0].load(0)
    with pytest.raises(BadSampleError, match=f"{clips[1].file}.*frames where its header announced 60"):
        samples[1].load(1)


def test_missing_clips_and_zero_questions_are_refused(tmp_path, folder):
    list(
        write_spoken_clips(
            tmp_path, ["is there a circle?"], VOICES, [150], lambda *_: np.ones(800, np.float32), "tones"
        )
    )
    with pytest.raises(DataError, match="no clip of 'does the image contain a black shape.'.*write the folder anew"):
        SpokenEasyVQA("train", str(tmp_path))
    with pytest.raises(DataError, match="questions is 0"):
        SpokenEasyVQA("train", folder, 0)


def test_frames_of_real_voices_are_whispers(tmp_path):
    """One question spoken by espeak-ng; sizes from the manifest, frames from the clip."""
    clips = list(
        write_spoken_clips(
            tmp_path, ["is there a circle?"], {"train": ["en-gb+f2"]}, [200], espeak().synthesize, "espeak"
        )
    )
    (clip,) = clips
    frames = expected_frames(tmp_path, clip)
    assert 50 < len(frames) < 250 and frames.std() > 0.1
