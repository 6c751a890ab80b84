"""A folder of spoken clips, as espeak-ng would write it, in which every question of easy-VQA is a short tone."""

import zlib

import numpy as np

from data.datasets.easy_vqa import EasyVQA
from data.datasets.spoken_clips import SpokenClip, write_spoken_clips
from data.media.sound.mel import SAMPLE_RATE

VOICES = {"train": ("low", "high"), "test": ("held-out",)}
SPEEDS = (150, 300)


def tone(text: str, voice: str, speed: int) -> np.ndarray:
    """A pitch and a length of its own for every text, voice and speed: 18 to 108 ms."""
    number = zlib.crc32(f"{text} {voice}".encode())
    length = (6 + number % 12) * SAMPLE_RATE * 150 // speed // 166
    return (0.3 * np.sin(2 * np.pi * (200 + number % 997) * np.arange(length) / SAMPLE_RATE)).astype(np.float32)


def write_tones(folder, texts=None) -> list[SpokenClip]:
    """Every question, or the texts given, in three voices at two speeds."""
    texts = sorted({question for question, _ in EasyVQA("train").questions}) if texts is None else texts
    return list(write_spoken_clips(folder, texts, VOICES, SPEEDS, tone, "tones"))
