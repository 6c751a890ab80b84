"""Easy-VQA with its questions spoken: an image is seen, a question about it is heard, the answer is text."""

import collections
import dataclasses
import os
import pathlib
from collections.abc import Mapping

from data.audio import read_clip
from data.easy_vqa import EasyVQA, Samples
from data.errors import DataError
from data.formats import FrameFormat, SampleFormat
from data.items import clip_items, picture_item
from data.outline import Item, Outline
from data.prompting import Prompting
from data.records import Media
from data.samples import Stream
from data.source import RandomAccess
from data.speech import SpokenClip, read_speech
from data.spoken_questions import spoken_vqa_sample, transcription_sample


class SpokenEasyVQA:
    """One split of easy-VQA, heard in the voices of that split (`data.source.Source`).

    - `spoken_vqa`: one sample an image and up to `questions` clips of what is asked about it; no word of a question is
      among the tokens;
    - `transcription`: one a clip, and its words;
    - and those of `data.easy_vqa.EasyVQA`: `vqa`, `description`, `text`.

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
            folder: What `python -m data.spoken_vqa` wrote.
            questions: Questions of a sample, at most.
            pictures: The split of easy-VQA; the package's own by default.

        Raises:
            DataError: As `EasyVQA` and `read_speech`, or a question without a clip.
        """
        if questions < 1:
            raise DataError(f"SpokenEasyVQA.questions is {questions}; it must be at least 1")
        self.pictures = EasyVQA(split) if pictures is None else pictures
        self.tokenizer = dataclasses.replace(self.pictures.tokenizer, hears=True)
        self._folder = pathlib.Path(folder)
        self._all_clips = read_speech(folder, split)
        self.clips: dict[str, list[SpokenClip]] = collections.defaultdict(list)
        for clip in self._all_clips:
            self.clips[clip.text].append(clip)
        if unspoken := sorted({question for question, _ in self.pictures.questions} - self.clips.keys()):
            raise DataError(
                f"{os.fspath(folder)} has no clip of {unspoken[0]!r} for the split {split!r}; write the folder anew"
            )
        self._asked = self._cast(questions)
        self._streams: dict[tuple[str, FrameFormat], Stream] = {}

    prompting = Prompting()

    @property
    def judged(self) -> tuple[str, ...]:
        """Spoken questions about pictures."""
        return ("spoken_vqa",)

    def datasets(self, form: SampleFormat) -> Mapping[str, RandomAccess]:
        """The samples by kind, laid out as `form` asks; no kind that the model has no module for."""

        def spoken_vqa(index: int) -> Outline:
            image_id, asked = self._asked[index]
            image = self.pictures.image(image_id)
            picture = picture_item(lambda: image, image.shape[:2], form)
            heard = [(self._item(clip, form), answer) for clip, answer in asked]
            return spoken_vqa_sample(picture, heard, self.tokenizer, form)

        def transcription(index: int) -> Outline:
            clip = self._all_clips[index]
            return transcription_sample(self._item(clip, form), clip.text, self.tokenizer, form)

        heard = {"transcription": Samples(len(self._all_clips), transcription)} if form.frames else {}
        asked = {"spoken_vqa": Samples(len(self._asked), spoken_vqa)} if form.frames and form.patches else {}
        return asked | heard | self.pictures.datasets(form)

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

    def _item(self, clip: SpokenClip, form: SampleFormat) -> Item:
        """A clip as the audio encoder hears it; its frames are kept."""
        assert form.frames is not None
        media = Media.file(self._folder / clip.file)
        (made,) = clip_items(lambda: read_clip(media), [range(clip.samples)], form.frames, media.where)
        key = clip.file, form.frames

        def load() -> Stream:
            # Two threads may make the same frames once each; both keep the same numbers.
            if key not in self._streams:
                self._streams[key] = made.load()
            return self._streams[key]

        return dataclasses.replace(made, load=load)
