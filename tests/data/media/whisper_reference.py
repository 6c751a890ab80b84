"""Reference features of Whisper: the signals, and how the stored features of some of their frames were made.

whisper_reference.npz holds what `transformers.WhisperFeatureExtractor` computes of each signal, the version named in
it. `python -m tests.data.media.whisper_reference` writes it again where transformers is installed; no test needs it.
"""

import pathlib

import numpy as np
import soundfile

FILE = pathlib.Path(__file__).with_suffix(".npz")
# BSD-licensed, read from a book that is in the public domain: "he was not an ill disposed young man".
SPEECH = pathlib.Path("/usr/share/pocketsphinx/test/data/librivox/sense_and_sensibility_01_austen_64kb-0880.wav")

# Frames that are stored: the first ones, some of the midst, and the last ones, where the definition is delicate.
FRAMES = {
    "sweep": [0, 1, 2, 20, 36, 37],
    "click_at_the_end": [0, 3, 8, 9],
    "full_window": [0, 1, 1500, 2998, 2999],
    "speech": [0, 1, 40, 77, 123, 200, 297, 298],
}


def synthetic() -> dict[str, np.ndarray]:
    """Signals that need no generator of random numbers, float32 at 16 kHz."""
    click = _hiss(1600) * np.float32(0.01)
    click[-1] = 1
    full = _sweep(480_000)
    full[-30:] = 0.9
    return {"sweep": _sweep(6000), "click_at_the_end": click, "full_window": full}


def speech() -> np.ndarray:
    return soundfile.read(SPEECH, dtype="float32")[0]


def _sweep(samples: int) -> np.ndarray:
    """A tone that rises through all mel bands, in a little noise."""
    time = np.arange(samples) / samples
    return (0.4 * np.sin(2 * np.pi * samples / 4 * time**2)).astype(np.float32) + np.float32(0.02) * _hiss(samples)


def _hiss(samples: int) -> np.ndarray:
    numbers = np.arange(samples, dtype=np.int64)
    return ((numbers * numbers * 7919 + numbers * 104_729) % 65_537 / 65_537 - 0.5).astype(np.float32)


def _write() -> None:
    import transformers

    stored = {"source": np.array(f"transformers {transformers.__version__}, WhisperFeatureExtractor")}
    for mels in (80, 128):
        extract = transformers.WhisperFeatureExtractor(feature_size=mels)
        for name, waveform in {**synthetic(), "speech": speech()}.items():
            features = extract(waveform, sampling_rate=16_000, return_tensors="np").input_features[0].T
            if mels == 80 or name == "sweep":
                stored[f"{name}_{mels}"] = features[FRAMES[name]]
    np.savez_compressed(FILE, **stored)


if __name__ == "__main__":
    _write()
