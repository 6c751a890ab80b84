"""Easy-VQA with spoken questions: an image, a spoken question about it, and the answer as text.

It is the data of `spoken_vqa.gin`, from clips that `mmjax synthesize_speech` wrote.
"""

import collections
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence

from data.datasets.dataset import LazySamples, RandomAccessSamples
from data.datasets.easy_vqa import EasyVQA
from data.datasets.spoken_clips import MANIFEST, SpokenClip, read_spoken_clips
from data.errors import DataError
from data.media.sound.audio import read_audio
from data.samples.audio_format import FrameFormat, audio_items
from data.samples.encoder_format import EncoderInputs, MediaItem
from data.samples.image_format import PatchFormat, image_item
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from data.sources.parsing import media_from_path
from data.text.prompt_format import PromptFormat
from data.text.word_tokenizer import ANSWER, BOS, EOS, IMAGE, WordTokenizer


class SpokenEasyVQA:
    """One split of easy-VQA, spoken in the voices of that split (`data.datasets.dataset.Dataset`).

    - `spoken_vqa`: an image and clips of up to `questions` questions about it; the tokens contain no word of a
      question;
    - `transcription`: one sample for each clip, answered by its text;
    - and the kinds of `data.datasets.easy_vqa.EasyVQA`: `vqa`, `description`, `text`.

    The k-th time that a question is asked, its clip number k modulo the number of its clips is used. The frames of a
    clip are cached once it was decoded (25 kB a clip of 40 mel bands).

    Attributes:
        easy_vqa: The images, and the questions about them.
        clips: The clips of every question, by its text.
        tokenizer: Easy-VQA's, with a token for audio.
        prompt_format: The default one.
    """

    prompt_format = PromptFormat()

    def __init__(self, split: str, folder: str = "speech", questions: int = 4, easy_vqa: EasyVQA | None = None) -> None:
        """Reads the manifest and the questions; clips and images are read on access.

        Args:
            split: `train` or `test`.
            folder: Folder that `python -m mmjax.synthesize_speech` wrote.
            questions: Most questions of a sample.
            easy_vqa: The split of easy-VQA; the package's own by default.

        Raises:
            DataError: As `EasyVQA` and `read_spoken_clips`; or a question has no clip.
        """
        if questions < 1:
            raise DataError(f"SpokenEasyVQA.questions is {questions}; it must be at least 1")
        self.easy_vqa = EasyVQA(split) if easy_vqa is None else easy_vqa
        self.tokenizer = dataclasses.replace(self.easy_vqa.tokenizer, has_audio_token=True)
        self._folder = pathlib.Path(folder)
        self._all_clips = read_spoken_clips(folder, split)
        self.clips: dict[str, list[SpokenClip]] = collections.defaultdict(list)
        for clip in self._all_clips:
            self.clips[clip.text].append(clip)
        if unspoken := sorted({question for question, _ in self.easy_vqa.questions} - self.clips.keys()):
            raise DataError(
                f"{os.fspath(folder)} has no clip of {unspoken[0]!r} for the split {split!r}; write the folder anew"
            )
        self._spoken_questions = self._assign_clips(questions)
        self._frames: dict[tuple[str, FrameFormat], EncoderInputs] = {}

    @property
    def evaluated_kinds(self) -> tuple[str, ...]:
        """Spoken questions about images."""
        return ("spoken_vqa",)

    def samples_by_kind(self, sample_format: SampleFormat) -> Mapping[str, RandomAccessSamples]:
        """The samples of every kind for which the model has modules."""
        patch_format, frame_format = sample_format.encoder_of(PatchFormat), sample_format.encoder_of(FrameFormat)

        def spoken_vqa(index: int) -> SampleMetadata:
            assert patch_format is not None and frame_format is not None
            image_id, questions = self._spoken_questions[index]
            image = self.easy_vqa.image(image_id)
            item = image_item(lambda: image, image.shape[:2], patch_format)
            clips = [(self._clip_item(clip, frame_format), answer) for clip, answer in questions]
            return spoken_vqa_sample(item, clips, self.tokenizer, sample_format)

        def transcription(index: int) -> SampleMetadata:
            assert frame_format is not None
            clip = self._all_clips[index]
            item = self._clip_item(clip, frame_format)
            return transcription_sample(item, clip.text, self.tokenizer, sample_format)

        spoken: dict[str, RandomAccessSamples] = {}
        if frame_format and patch_format:
            spoken["spoken_vqa"] = LazySamples(len(self._spoken_questions), spoken_vqa)
        if frame_format:
            spoken["transcription"] = LazySamples(len(self._all_clips), transcription)
        return spoken | self.easy_vqa.samples_by_kind(sample_format)

    def _assign_clips(self, max_questions: int) -> list[tuple[int, list[tuple[SpokenClip, str]]]]:
        """Image id and (clip, answer) pairs of every sample, the images in order."""
        times_asked: collections.Counter[str] = collections.Counter()
        samples = []
        for image_id in self.easy_vqa.image_ids:
            questions = []
            for question, answer in self.easy_vqa.pairs[image_id]:
                clips = self.clips[question]
                questions.append((clips[times_asked[question] % len(clips)], answer))
                times_asked[question] += 1
            samples += [
                (image_id, questions[first : first + max_questions])
                for first in range(0, len(questions), max_questions)
            ]
        return samples

    def _clip_item(self, clip: SpokenClip, frame_format: FrameFormat) -> MediaItem:
        """A clip as an encoder input whose frames are cached."""
        media = media_from_path(MANIFEST, str(self._folder), clip.file)
        chunks = [range(clip.samples)]
        (item,) = audio_items(lambda: read_audio(media), chunks, frame_format, media.where)
        key = clip.file, frame_format

        def load() -> EncoderInputs:
            # Two threads may both compute the frames of a clip; they store the same values.
            if key not in self._frames:
                self._frames[key] = item.load()
            return self._frames[key]

        return dataclasses.replace(item, load=load)


def spoken_vqa_sample(
    image: MediaItem,
    questions: Sequence[tuple[MediaItem, str]],
    tokenizer: WordTokenizer,
    sample_format: SampleFormat,
) -> SampleMetadata:
    """An image, encoded once, and any number of spoken questions, none of which attends to another.

    Trunk: `<bos> <image>…`; each branch: `<audio>… <answer> answer <eos>`, the loss on the answer and `<eos>`.

    Args:
        image: The image (`data.samples.image_format.image_item`).
        questions: (clip of the question, one of `data.samples.audio_format.audio_items`; text of the answer).
        tokenizer: Knows the answers' words, and has an audio token.
        sample_format: Formats that the model requires; it has a vision and an audio encoder.
    """
    trunk = [BOS, *[IMAGE] * sample_format.encoder_formats["patches"].token_count(image.length)]
    branches, loss_positions = [], []
    for clip, answer in questions:
        branch, positions = _clip_and_answer(clip, answer, tokenizer, sample_format)
        branches.append(branch)
        loss_positions.append(positions)
    layout = lay_out_tokens(trunk, branches, [(), *loss_positions], _placeholders(tokenizer, sample_format))
    return SampleMetadata(
        kind="spoken_vqa", layout=layout, sample_format=sample_format, items=[image, *(clip for clip, _ in questions)]
    )


def transcription_sample(
    clip: MediaItem, text: str, tokenizer: WordTokenizer, sample_format: SampleFormat
) -> SampleMetadata:
    """A clip and its text: `<bos> <audio>… <answer> text <eos>`, the loss on the text and `<eos>`."""
    tokens, positions = _clip_and_answer(clip, text, tokenizer, sample_format)
    loss_positions = [[1 + position for position in positions]]
    layout = lay_out_tokens([BOS, *tokens], [], loss_positions, _placeholders(tokenizer, sample_format))
    return SampleMetadata(kind="transcription", layout=layout, sample_format=sample_format, items=[clip])


def _clip_and_answer(
    clip: MediaItem, answer: str, tokenizer: WordTokenizer, sample_format: SampleFormat
) -> tuple[list[int], range]:
    """`<audio>… <answer> answer <eos>`, and the positions of the answer and `<eos>` in it."""
    audio_count = sample_format.encoder_formats["frames"].token_count(clip.length)
    audio_ids = [tokenizer.special_tokens.require("audio")] * audio_count
    answer_ids = [*tokenizer.encode(answer), EOS]
    return [*audio_ids, ANSWER, *answer_ids], range(audio_count + 1, audio_count + 1 + len(answer_ids))


def _placeholders(tokenizer: WordTokenizer, sample_format: SampleFormat) -> dict[str, int]:
    placeholders = {"patches": IMAGE, "frames": tokenizer.special_tokens.require("audio")}
    return {field: placeholders[field] for field in sample_format.encoder_formats}
