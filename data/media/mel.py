"""Whisper's features of a clip (arXiv 2212.04356, section 2.2): the log-mel spectrogram."""

import functools

import numpy as np
from jaxtyping import Float, Float32

from data.errors import DataError
from data.media.audio import MAX_CHUNK_SAMPLES, SAMPLE_RATE

WINDOW_LENGTH = 400  # samples: 25 ms
HOP_LENGTH = 160  # samples: 10 ms
_HALF = WINDOW_LENGTH // 2
_LEAST_POWER = 1e-10
_MOST_FRAMES = MAX_CHUNK_SAMPLES // HOP_LENGTH


def frame_count(samples: int, multiple: int = 1) -> int:
    """Frames of a clip: one every 10 ms from its start on, rounded up to a multiple.

    Args:
        samples: Length of the clip at 16 kHz, at most 30 s.
        multiple: 2 x merge for `AudioConfig`, whose encoder makes one position of two frames and one token of `merge`
            positions.
    """
    return -(-samples // (HOP_LENGTH * multiple)) * multiple


def log_mel(
    waveform: Float32[np.ndarray, " samples"], mels: int = 80, multiple: int = 1
) -> Float32[np.ndarray, "frames {mels}"]:
    """The first `frame_count` frames of what Whisper computes of the clip, as if it stood in its window of 30 s.

    Whisper pads a clip with zeros to 30 s, so:

    - Frame t hears the 25 ms around t x 10 ms. Before its start the clip is mirrored, behind its end there are zeros,
      behind 30 s the window is mirrored. A frame of `multiple` behind the clip's end is silence.
    - Values are clamped at 8 below the maximum of the window. All frames behind the clip but the first two are silent
      and never the maximum; these two hear the end of the clip, so they count in the maximum though not returned.

    Hence nothing depends on how clips are batched, and the cost is that of the clip's own length. A longer recording is
    cut by `data.media.audio.split_clip` and every piece is a clip of its own, with its own maximum.

    Args:
        waveform: Mono sound of 16 kHz.
        mels: Mel bands: 80, or 128 for Whisper large-v3.
        multiple: See `frame_count`.

    Raises:
        DataError: A clip longer than 30 s, or without a sample.
    """
    if not 0 < len(waveform) <= MAX_CHUNK_SAMPLES:
        raise DataError(f"a clip of {len(waveform)} samples; split it into pieces of 1 to {MAX_CHUNK_SAMPLES}")
    frames = frame_count(len(waveform), multiple)
    heard = min(frames + 2, _MOST_FRAMES)
    window = np.zeros(heard * HOP_LENGTH, np.float64)
    window[: len(waveform)] = waveform
    power = np.pad(_power(window, heard), ((0, max(0, frames - heard)), (0, 0)))
    spectrogram = np.log10(np.maximum(power @ _mel_filters(mels), _LEAST_POWER))
    spectrogram = np.maximum(spectrogram, spectrogram.max() - 8)[:frames]
    return ((spectrogram + 4) / 4).astype(np.float32)


def _power(window: Float[np.ndarray, " samples"], frames: int) -> Float[np.ndarray, "{frames} bins"]:
    """|FFT|² of `frames` stretches of 25 ms, each weighted by a periodic Hann window.

    In double precision: 8 decades below the loudest, single precision would be off by more than 1e-4.
    """
    # Mirrored at both ends; at the right it is heard only where the window is all of the 30 s.
    padded = np.pad(window, _HALF, mode="reflect")
    stretches = np.lib.stride_tricks.sliding_window_view(padded, WINDOW_LENGTH)[::HOP_LENGTH][:frames]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW_LENGTH) / WINDOW_LENGTH)
    return np.abs(np.fft.rfft(stretches * hann, axis=-1)) ** 2


@functools.cache
def _mel_filters(mels: int) -> Float[np.ndarray, "bins {mels}"]:
    """Triangles between neighbouring mel frequencies from 0 to 8 kHz, each of area 1 over Hz (Slaney's)."""
    edges = _from_mel(np.linspace(0, _to_mel(SAMPLE_RATE / 2), mels + 2))
    bins = np.linspace(0, SAMPLE_RATE / 2, WINDOW_LENGTH // 2 + 1)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (edges[2:] - edges[:-2])


# Slaney's mel scale: linear to 1 kHz, 15 mels; above it a factor of 6.4 every 27 mels.
_KNEE, _KNEE_MELS, _STEP = 1000.0, 15.0, np.log(6.4) / 27


def _to_mel(frequency: float) -> float:
    if frequency < _KNEE:
        return frequency * _KNEE_MELS / _KNEE
    return _KNEE_MELS + float(np.log(frequency / _KNEE)) / float(_STEP)


def _from_mel(mel: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    return np.where(mel < _KNEE_MELS, mel * _KNEE / _KNEE_MELS, _KNEE * np.exp(_STEP * (mel - _KNEE_MELS)))
