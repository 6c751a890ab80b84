"""Easy-VQA whose questions are short tones: data for a model of two encoders without any download or synthesis."""

import dataclasses
import zlib
from collections.abc import Mapping

import numpy as np

from data.datasets.dataset import LazySamples, RandomAccessSamples
from data.datasets.easy_vqa import EasyVQA
from data.datasets.spoken_easy_vqa import spoken_vqa_sample
from data.media.sound.mel import SAMPLE_RATE
from data.samples.audio_format import FrameFormat, audio_items
from data.samples.encoder_format import MediaItem
from data.samples.image_format import PatchFormat, image_item
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.text.prompt_format import PromptFormat

QUESTIONS = 2
"""Most questions of a `tone_vqa` sample."""


class ToneVQA:
    """One split of easy-VQA (`data.datasets.dataset.Dataset`), for tests and `configs/tiny_encoders.gin`.

    The kinds are the kinds of `EasyVQA`, and `tone_vqa`: an image and the first questions about it, each as a tone.

    Args:
        split: `train` or `test`.

    Attributes:
        easy_vqa: The images, and the questions about them.
        tokenizer: Easy-VQA's, with a token for audio.
        prompt_format: The default one.
        evaluated_kinds: Questions in tones.
    """

    prompt_format = PromptFormat()
    evaluated_kinds = ("tone_vqa",)

    def __init__(self, split: str) -> None:
        self.easy_vqa = EasyVQA(split)
        self.tokenizer = dataclasses.replace(self.easy_vqa.tokenizer, has_audio_token=True)

    def samples_by_kind(self, sample_format: SampleFormat) -> Mapping[str, RandomAccessSamples]:
        """The samples of every kind for which the model has modules."""
        patch_format, frame_format = sample_format.encoder_of(PatchFormat), sample_format.encoder_of(FrameFormat)
        usual = self.easy_vqa.samples_by_kind(sample_format)
        if patch_format is None or frame_format is None:
            return usual

        def tone_vqa(index: int) -> SampleMetadata:
            image_id = self.easy_vqa.image_ids[index]
            image = self.easy_vqa.image(image_id)
            item = image_item(lambda: image, image.shape[:2], patch_format)
            pairs = self.easy_vqa.pairs[image_id][:QUESTIONS]
            clips = [(_tone_item(question, frame_format), answer) for question, answer in pairs]
            return spoken_vqa_sample(item, clips, self.tokenizer, sample_format)

        return {"tone_vqa": LazySamples(len(self.easy_vqa.image_ids), tone_vqa)} | usual


def question_tone(question: str) -> np.ndarray:
    """A tone as float32 sound, whose pitch and length, 36 to 102 ms, follow from the words of the question."""
    number = zlib.crc32(question.encode())
    times = np.arange((6 + number % 12) * SAMPLE_RATE // 166) / SAMPLE_RATE
    return (0.3 * np.sin(2 * np.pi * (200 + number % 997) * times)).astype(np.float32)


def _tone_item(question: str, frame_format: FrameFormat) -> MediaItem:
    tone = question_tone(question)
    (item,) = audio_items(lambda: tone, [range(len(tone))], frame_format, f"tone of {question!r}")
    return item
