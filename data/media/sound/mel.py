"""Log-mel spectrograms of audio clips, as Whisper computes them (arXiv 2212.04356, section 2.2).

`data.samples.audio_format` computes an audio encoder's inputs with it.
"""

import functools

import numpy as np
from jaxtyping import Float, Float32

from data.errors import DataError

SAMPLE_RATE = 16_000
"""Sample rate of every waveform, in Hz."""

MAX_CHUNK_SAMPLES = 30 * SAMPLE_RATE
"""Samples of the 30 s window on which Whisper's encoder was trained."""

WINDOW_LENGTH = 400
"""Samples of an FFT window: 25 ms."""

HOP_LENGTH = 160
"""Samples between two frames: 10 ms."""

_HALF_WINDOW = WINDOW_LENGTH // 2
_MIN_POWER = 1e-10
_MAX_FRAMES = MAX_CHUNK_SAMPLES // HOP_LENGTH


def split_into_chunks(samples: int) -> list[range]:
    """Splits a clip into the fewest consecutive chunks of at most 30 s, all of about the same length.

    Equal lengths avoid a last chunk of a few samples, which would be an encoder input of its own.

    Args:
        samples: Length of the clip at 16 kHz.

    Returns:
        The range of samples of each chunk.
    """
    count = -(-samples // MAX_CHUNK_SAMPLES)
    return [range(samples * chunk // count, samples * (chunk + 1) // count) for chunk in range(count)]


def frame_count(samples: int, multiple: int = 1) -> int:
    """Number of frames of a chunk: one every 10 ms, rounded up to a multiple.

    Args:
        samples: Length of the chunk at 16 kHz, at most 30 s.
        multiple: 2 x merge for `AudioConfig`, whose encoder makes one position of two frames and one backbone token
            of `merge` positions.
    """
    return -(-samples // (HOP_LENGTH * multiple)) * multiple


def log_mel(
    waveform: Float32[np.ndarray, " samples"], mels: int = 80, multiple: int = 1
) -> Float32[np.ndarray, "frames {mels}"]:
    """The first `frame_count` frames of Whisper's log-mel spectrogram of a chunk.

    Whisper pads a chunk with zeros to 30 s. Therefore:

    - Frame t covers the 25 ms centred at t x 10 ms. The signal is mirrored before its start, zero after its end, and
      mirrored after 30 s. Frames added to reach a `multiple` are silent.
    - Values are clamped to at least the maximum over the window minus 8. Of the frames after the chunk only the first
      two overlap it, so they count in the maximum although they are not returned; the others are silent.

    The result does not depend on how chunks are batched, and the cost is proportional to the chunk's own length.
    Longer recordings are split by `split_into_chunks`; every chunk has its own maximum.

    Args:
        waveform: Mono sound of 16 kHz.
        mels: Number of mel bands: 80, or 128 for Whisper large-v3.
        multiple: See `frame_count`.

    Raises:
        DataError: The waveform is empty or longer than 30 s.
    """
    if not 0 < len(waveform) <= MAX_CHUNK_SAMPLES:
        raise DataError(f"a clip of {len(waveform)} samples; split it into chunks of 1 to {MAX_CHUNK_SAMPLES}")
    frames = frame_count(len(waveform), multiple)
    computed = min(frames + 2, _MAX_FRAMES)
    window = np.zeros(computed * HOP_LENGTH, np.float64)
    window[: len(waveform)] = waveform
    power = np.pad(_power_spectrum(window, computed), ((0, max(0, frames - computed)), (0, 0)))
    spectrogram = np.log10(np.maximum(power @ _mel_filters(mels), _MIN_POWER))  # [frames, mels]
    spectrogram = np.maximum(spectrogram, spectrogram.max() - 8)[:frames]
    return ((spectrogram + 4) / 4).astype(np.float32)


def _power_spectrum(window: Float[np.ndarray, " samples"], frames: int) -> Float[np.ndarray, "{frames} bins"]:
    """|FFT|² of `frames` windows of 25 ms, each weighted by a periodic Hann window.

    In double precision: 8 decades below the maximum, single precision would be off by more than 1e-4.
    """
    # Mirrored at both ends; the right end matters only for a chunk of the full 30 s.
    padded = np.pad(window, _HALF_WINDOW, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW_LENGTH)[::HOP_LENGTH][:frames]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW_LENGTH) / WINDOW_LENGTH)
    return np.abs(np.fft.rfft(windows * hann, axis=-1)) ** 2


@functools.cache
def _mel_filters(mels: int) -> Float[np.ndarray, "bins {mels}"]:
    """Triangular filters between neighbouring mel frequencies from 0 to 8 kHz, each of area 1 over Hz (Slaney)."""
    edges = _mel_to_hz(np.linspace(0, _hz_to_mel(SAMPLE_RATE / 2), mels + 2))
    bins = np.linspace(0, SAMPLE_RATE / 2, WINDOW_LENGTH // 2 + 1)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (edges[2:] - edges[:-2])


# Slaney's mel scale: linear up to 1 kHz (15 mels), above it a factor of 6.4 in frequency every 27 mels.
_KNEE_HZ, _KNEE_MELS, _LOG_STEP = 1000.0, 15.0, np.log(6.4) / 27


def _hz_to_mel(frequency: float) -> float:
    if frequency < _KNEE_HZ:
        return frequency * _KNEE_MELS / _KNEE_HZ
    return _KNEE_MELS + float(np.log(frequency / _KNEE_HZ)) / float(_LOG_STEP)


def _mel_to_hz(mel: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    return np.where(mel < _KNEE_MELS, mel * _KNEE_HZ / _KNEE_MELS, _KNEE_HZ * np.exp(_LOG_STEP * (mel - _KNEE_MELS)))
