"""eSpeak NG: text to speech by rules, with many voices, none of them a recorded person's (Debian's `espeak-ng`)."""

import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float32

from data.errors import DataError
from data.media.audio import read_audio
from data.records import Media

PROGRAM = "espeak-ng"
SLOWEST, FASTEST = 80, 450  # words a minute
_PATIENCE = 60  # seconds for one call, which takes hundredths of one
_VARIANT = re.compile(r"!v/(.+?)\s*(?:\(|$)")


class Espeak:
    """The installed program, ready to speak. The same text, voice and speed give the same sound on one machine.

    Attributes:
        version: What it calls itself, for the record.

    Raises:
        DataError: It is not installed.
    """

    def __init__(self) -> None:
        """Finds the program."""
        found = shutil.which(PROGRAM)
        if found is None:
            raise DataError(
                f"{PROGRAM}, which speaks the questions, is not installed; install your system's package of that name: "
                f"apt-get install {PROGRAM} on Debian and Ubuntu"
            )
        self._program = found
        self.version = self._run("--version").split("  ")[0].strip()

    def check_voices(self, voices: Iterable[str], speeds: Iterable[int]) -> None:
        """Checks what is to be asked of it: left to itself, it takes another variant or speed without a word.

        Args:
            voices: Such as `en-us` and `en-gb+f2`: a language, and a variant of the speaker.
            speeds: Words a minute.

        Raises:
            DataError: An unknown language or variant, or a speed that it does not have.
        """
        for speed in speeds:
            if not SLOWEST <= speed <= FASTEST:
                raise DataError(f"a speed of {speed} words a minute; {PROGRAM} speaks {SLOWEST} to {FASTEST}")
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
        """The text spoken, without the pause at its end: mono sound of 16 kHz.

        Args:
            text: Words.
            voice, speed: See `require`.

        Raises:
            DataError: The program fails.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "said.wav"
            self._run("-v", voice, "-s", str(speed), "-z", "-w", str(path), "--", text)
            return read_audio(Media.from_file(path))

    def _run(self, *arguments: str) -> str:
        try:
            ran = subprocess.run(
                [self._program, *arguments], capture_output=True, text=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"{self._program} {' '.join(arguments)} does not run: {error}") from error
        if ran.returncode:
            raise DataError(f"{self._program} {' '.join(arguments)} fails: {ran.stderr.strip() or ran.returncode}")
        return ran.stdout
