"""Easy-VQA in tones: a batch brings something to both encoders."""

import numpy as np

from data.datasets.dataset import Dataset
from data.datasets.easy_vqa import EasyVQA
from data.datasets.tone_vqa import ToneVQA, question_tone
from data.media.sound.mel import log_mel
from data.samples.audio_format import FrameFormat
from data.samples.image_format import PatchFormat
from data.samples.sample_format import SampleFormat

FORM = SampleFormat((PatchFormat(), FrameFormat(mels=8, merge=2, max_length=64)), None)


def test_a_sample_has_an_image_and_its_first_questions_as_tones():
    train, easy_vqa = ToneVQA("train"), EasyVQA("train")
    assert isinstance(train, Dataset)
    samples = train.samples_by_kind(FORM)
    assert set(samples) == {"tone_vqa", "vqa", "text"} and len(samples["tone_vqa"]) == len(easy_vqa.image_ids)
    sample, pairs = samples["tone_vqa"][3], easy_vqa.pairs[easy_vqa.image_ids[3]]
    _, *clips = sample.items
    assert len(clips) == min(2, len(pairs)) > 0
    for clip, (question, _) in zip(clips, pairs, strict=False):
        np.testing.assert_array_equal(clip.load().values, log_mel(question_tone(question), 8, 4))


def test_questions_have_tones_of_different_pitch_and_length():
    questions = sorted({question for question, _ in EasyVQA("train").questions})
    tones = [question_tone(question) for question in questions]
    assert {tone.dtype for tone in tones} == {np.dtype(np.float32)}
    assert {len(tone) for tone in tones} == {(6 + k) * 16_000 // 166 for k in range(12)}  # 36 to 102 ms
    assert len({tone.tobytes() for tone in tones}) > 0.9 * len(tones)


def test_a_model_without_ears_has_the_usual_kinds():
    assert set(ToneVQA("test").samples_by_kind(SampleFormat((PatchFormat(),), None))) == {"vqa", "text"}
