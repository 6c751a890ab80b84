"""Inputs of audio encoders: clips of any length as mel frames, sized from headers and decoded on loading.

Importing the file registers the format of `AudioConfig`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from configs.modules.encoders import AudioConfig
from data.media.sound.mel import frame_count, log_mel, split_into_chunks
from data.media.tilings.tiling import ImageTiling
from data.records import Media
from data.samples.decoded_once import DecodedOnce
from data.samples.encoder_format import EncoderFormat, MediaItem, encoder_format


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameFormat(EncoderFormat):
    """Inputs of an audio encoder: mel frames, two of which become a position and `merge` positions one token.

    Attributes:
        mels: Mel bands of a frame.
        merge: Positions that become one backbone token.
    """

    module: str = "audio"
    mels: int = 80
    merge: int = 2
    max_length: int = 3000

    field: ClassVar[str] = AudioConfig.field
    special_token: ClassVar[str] = "audio"
    values_per_position: ClassVar[int] = 2
    item_name: ClassVar[str] = "encoder_clips"

    @property
    def values_per_token(self) -> int:
        """Frames that become one backbone token."""
        return self.values_per_position * self.merge

    @property
    def value_width(self) -> int:
        """Mel bands of a frame."""
        return self.mels

    def media_items(self, media: Media, tiling: ImageTiling | None = None) -> list[MediaItem]:
        """The encoder inputs of an audio file: one for each chunk."""
        from data.media.sound.audio import audio_length, read_audio  # needs the extra `audio`

        chunks = split_into_chunks(audio_length(media))
        return audio_items(lambda: read_audio(media), chunks, self, media.where)


@encoder_format.register
def _(config: AudioConfig, max_length: int) -> FrameFormat:
    return FrameFormat(module=config.name, mels=config.mels, merge=config.merge, max_length=max_length)


def audio_items(
    waveform: Callable[[], np.ndarray], chunks: Sequence[range], frame_format: FrameFormat, where: str = "clip"
) -> list[MediaItem]:
    """The encoder inputs of one audio clip.

    Args:
        waveform: Decodes the clip: float32[samples] at `data.media.sound.mel.SAMPLE_RATE`.
        chunks: Range of samples of each chunk (`data.media.sound.mel.split_into_chunks`).
        frame_format: Format of the encoder's inputs.
        where: Name of the clip in messages.
    """
    decoded = DecodedOnce(waveform, len(chunks))
    multiple = frame_format.values_per_token

    def loader(chunk: range) -> Callable[[], np.ndarray]:
        return lambda: log_mel(decoded()[chunk.start : chunk.stop], frame_format.mels, multiple)

    return [frame_format.item(frame_count(len(chunk), multiple), loader(chunk), where) for chunk in chunks]
