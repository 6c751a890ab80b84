"""Easy-VQA with its questions spoken: an image is seen, a question about it is heard, the answer is text."""

import collections
import dataclasses
import os
import pathlib
from collections.abc import Mapping

from data.datasets.dataset import RandomAccessSamples
from data.datasets.easy_vqa import EasyVQA, LazySamples
from data.datasets.spoken_clips import SpokenClip, read_spoken_clips
from data.datasets.spoken_easy_vqa_samples import spoken_vqa_sample, transcription_sample
from data.errors import DataError
from data.media.audio import read_audio
from data.records import Media
from data.samples.media_items import audio_items, image_item
from data.samples.sample import EncoderInputs
from data.samples.sample_format import FrameFormat, SampleFormat
from data.samples.sample_metadata import MediaItem, SampleMetadata
from data.text.prompt_format import PromptFormat


class SpokenEasyVQA:
    """One split of easy-VQA, heard in the voices of that split (`data.datasets.dataset.Source`).

    - `spoken_vqa`: one sample an image and up to `questions` clips of what is asked about it; no word of a question is
      among the tokens;
    - `transcription`: one a clip, and its words;
    - and those of `data.datasets.easy_vqa.EasyVQA`: `vqa`, `description`, `text`.

    The k-th time that a question is asked, its clip k modulo their number is played. What was heard once is kept as the
    frames that the model asks for (25 kB a clip of 40 bands).

    Attributes:
        pictures: The images and the questions about them.
        clips: The clips of every question.
    """

    def __init__(self, split: str, folder: str = "speech", questions: int = 4, pictures: EasyVQA | None = None) -> None:
        """Reads the manifest and the questions; clips and images are read when asked for.

        Args:
            split: `train` or `test`.
            folder: What `python -m mmjax.synthesize_speech` wrote.
            questions: Questions of a sample, at most.
            pictures: The split of easy-VQA; the package's own by default.

        Raises:
            DataError: As `EasyVQA` and `read_speech`, or a question without a clip.
        """
        if questions < 1:
            raise DataError(f"SpokenEasyVQA.questions is {questions}; it must be at least 1")
        self.pictures = EasyVQA(split) if pictures is None else pictures
        self.tokenizer = dataclasses.replace(self.pictures.tokenizer, has_audio_token=True)
        self._folder = pathlib.Path(folder)
        self._all_clips = read_spoken_clips(folder, split)
        self.clips: dict[str, list[SpokenClip]] = collections.defaultdict(list)
        for clip in self._all_clips:
            self.clips[clip.text].append(clip)
        if unspoken := sorted({question for question, _ in self.pictures.questions} - self.clips.keys()):
            raise DataError(
                f"{os.fspath(folder)} has no clip of {unspoken[0]!r} for the split {split!r}; write the folder anew"
            )
        self._asked = self._cast(questions)
        self._streams: dict[tuple[str, FrameFormat], EncoderInputs] = {}

    prompt_format = PromptFormat()

    @property
    def evaluated_kinds(self) -> tuple[str, ...]:
        """Spoken questions about pictures."""
        return ("spoken_vqa",)

    def samples_by_kind(self, form: SampleFormat) -> Mapping[str, RandomAccessSamples]:
        """The samples by kind, laid out as `form` asks; no kind that the model has no module for."""

        def spoken_vqa(index: int) -> SampleMetadata:
            image_id, asked = self._asked[index]
            image = self.pictures.image(image_id)
            picture = image_item(lambda: image, image.shape[:2], form)
            heard = [(self._item(clip, form), answer) for clip, answer in asked]
            return spoken_vqa_sample(picture, heard, self.tokenizer, form)

        def transcription(index: int) -> SampleMetadata:
            clip = self._all_clips[index]
            return transcription_sample(self._item(clip, form), clip.text, self.tokenizer, form)

        heard = {"transcription": LazySamples(len(self._all_clips), transcription)} if form.frames else {}
        asked = {"spoken_vqa": LazySamples(len(self._asked), spoken_vqa)} if form.frames and form.patches else {}
        return asked | heard | self.pictures.samples_by_kind(form)

    def _cast(self, most: int) -> list[tuple[int, list[tuple[SpokenClip, str]]]]:
        """Image and (clip, answer) of every sample, the images in order."""
        times: collections.Counter[str] = collections.Counter()
        found = []
        for image_id in self.pictures.image_ids:
            heard = []
            for question, answer in self.pictures.pairs[image_id]:
                clips = self.clips[question]
                heard.append((clips[times[question] % len(clips)], answer))
                times[question] += 1
            found += [(image_id, heard[first : first + most]) for first in range(0, len(heard), most)]
        return found

    def _item(self, clip: SpokenClip, form: SampleFormat) -> MediaItem:
        """A clip as the audio encoder hears it; its frames are kept."""
        assert form.frames is not None
        media = Media.from_file(self._folder / clip.file)
        (made,) = audio_items(lambda: read_audio(media), [range(clip.samples)], form.frames, media.where)
        key = clip.file, form.frames

        def load() -> EncoderInputs:
            # Two threads may make the same frames once each; both keep the same numbers.
            if key not in self._streams:
                self._streams[key] = made.load()
            return self._streams[key]

        return dataclasses.replace(made, load=load)
