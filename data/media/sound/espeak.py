"""Speech synthesis by eSpeak NG (Debian's `espeak-ng`): rule-based, with many voices and no recorded speaker.

`mmjax synthesize_speech` speaks easy-VQA's questions with it.
"""

import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float32

from data.errors import DataError
from data.media.sound.audio import read_audio
from data.records import Media

PROGRAM = "espeak-ng"
MIN_SPEED, MAX_SPEED = 80, 450  # words per minute
_TIMEOUT = 60  # seconds for one call, which takes hundredths of a second
_VARIANT = re.compile(r"!v/(.+?)\s*(?:\(|$)")


class Espeak:
    """The installed program. On one machine, the same text, voice and speed give the same sound.

    Attributes:
        version: Name and version of the program.

    Raises:
        DataError: The program is not installed.
    """

    def __init__(self) -> None:
        """Finds the program."""
        path = shutil.which(PROGRAM)
        if path is None:
            raise DataError(
                f"{PROGRAM}, which synthesizes speech, is not installed; install your system's package of that name: "
                f"apt-get install {PROGRAM} on Debian and Ubuntu"
            )
        self._program = path
        self.version = self._run("--version").split("  ")[0].strip()

    def check_voices(self, voices: Iterable[str], speeds: Iterable[int]) -> None:
        """Checks voices and speeds; the program itself would replace unknown ones silently.

        Args:
            voices: Voices such as `en-us` and `en-gb+f2`: a language, optionally with a variant of the speaker.
            speeds: Words per minute.

        Raises:
            DataError: An unknown language or variant, or a speed outside the program's range.
        """
        for speed in speeds:
            if not MIN_SPEED <= speed <= MAX_SPEED:
                raise DataError(f"a speed of {speed} words per minute; {PROGRAM} speaks {MIN_SPEED} to {MAX_SPEED}")
        variants = {match[1] for line in self._run("--voices=variant").splitlines() if (match := _VARIANT.search(line))}
        lines = [line.split() for line in self._run("--voices").splitlines()[1:]]
        languages = {fields[1] for fields in lines if len(fields) > 1}
        for voice in voices:
            language, plus, variant = voice.partition("+")
            if language not in languages:
                raise DataError(f"voice {voice}: {self.version} has no language {language!r}; {PROGRAM} --voices lists")
            if plus and variant not in variants:
                raise DataError(
                    f"voice {voice}: {self.version} has no variant {variant!r}; {PROGRAM} --voices=variant lists them"
                )

    def synthesize(self, text: str, voice: str, speed: int) -> Float32[np.ndarray, " samples"]:
        """Speaks a text, without the pause at its end: mono sound of 16 kHz.

        Args:
            text: The text to speak.
            voice: See `check_voices`.
            speed: Words per minute.

        Raises:
            DataError: The program fails.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "speech.wav"
            self._run("-v", voice, "-s", str(speed), "-z", "-w", str(path), "--", text)
            return read_audio(Media.from_file(path))

    def _run(self, *arguments: str) -> str:
        try:
            process = subprocess.run(
                [self._program, *arguments], capture_output=True, text=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"{self._program} {' '.join(arguments)} cannot be run: {error}") from error
        if process.returncode:
            raise DataError(
                f"{self._program} {' '.join(arguments)} failed: {process.stderr.strip() or process.returncode}"
            )
        return process.stdout
