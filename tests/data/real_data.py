"""Real photographs, speech and a program that speaks. What is not installed skips a test, and fails it under CI."""

import os
import pathlib
import shutil

import numpy as np
import pytest

from data.media.sound.espeak import PROGRAM, Espeak

SPEECH = pathlib.Path("/usr/share/pocketsphinx/test/data")  # Debian's pocketsphinx-testdata


def photographs() -> dict[str, np.ndarray]:
    """scikit-learn's two, uint8[427, 640, 3] each."""
    try:
        from sklearn.datasets import load_sample_image
    except ImportError:
        _missing("scikit-learn")
    return {name: load_sample_image(name) for name in ("china.jpg", "flower.jpg")}


def speech_files() -> list[pathlib.Path]:
    """Ten sentences, WAV of 16 kHz."""
    files = sorted(SPEECH.glob("*/*.wav"))
    if not files:
        _missing("Debian's pocketsphinx-testdata")
    return files


def espeak() -> Espeak:
    """The program that speaks the questions of easy-VQA."""
    if shutil.which(PROGRAM) is None:
        _missing("Debian's espeak-ng")
    return Espeak()


def _missing(dependency: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{dependency} is not installed; CI needs it")
    pytest.skip(f"{dependency} is not installed")
