"""`python -m mmjax.synthesize_speech`: espeak-ng speaks the questions of easy-VQA, in voices of both splits.

Interrupted, it continues when it is called again.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING

from mmjax import cli

if TYPE_CHECKING:
    from data.media.sound.espeak import Espeak

VOICES = (
    *("en-us", "en-us+m1", "en-us+m3", "en-us+m5", "en-us+f1", "en-us+f3"),
    *("en-gb", "en-gb+m2", "en-gb+m6", "en-gb+f2"),
)
HELD_OUT_VOICES = ("en-us+m7", "en-gb+f4", "en-gb-scotland+m4")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynthesizeSpeechArguments:
    """Flags of the command."""

    folder: str = cli.flag(
        "speech", "Folder to which the clips and their manifest are written.", metavar="FOLDER", parse=cli.output_folder
    )
    voices: tuple[str, ...] = cli.flag(
        VOICES,
        "Voices of the training split: languages and variants of espeak-ng.",
        metavar="NAMES",
        parse=cli.list_of(str),
    )
    held_out_voices: tuple[str, ...] = cli.flag(
        HELD_OUT_VOICES, "Voices of the test split.", metavar="NAMES", parse=cli.list_of(str)
    )
    speeds: tuple[int, ...] = cli.flag(
        (180, 230), "Words per minute.", metavar="SPEEDS", parse=cli.list_of(cli.integer(1))
    )


def prepare(arguments: SynthesizeSpeechArguments) -> cli.Work:
    """Checks that espeak-ng has the voices."""
    from data.media.sound.espeak import Espeak

    espeak = Espeak()
    espeak.check_voices([*arguments.voices, *arguments.held_out_voices], arguments.speeds)
    return functools.partial(synthesize, arguments, espeak)


def synthesize(arguments: SynthesizeSpeechArguments, espeak: "Espeak") -> None:
    """Synthesizes the clips that do not exist yet, and prints a summary."""
    from configs.common.console import plain_console
    from data.datasets.easy_vqa import EasyVQA
    from data.datasets.spoken_clips import MANIFEST, write_spoken_clips
    from data.media.sound.mel import SAMPLE_RATE
    from mmjax.training.metrics.activity import SPEAKING, display_activity, progress_console

    speeds = arguments.speeds
    texts = sorted({question for split in ("train", "test") for question, _ in EasyVQA(split).questions})
    voices = {"train": arguments.voices, "test": arguments.held_out_voices}
    total = len(texts) * len(speeds) * sum(map(len, voices.values()))
    clips = write_spoken_clips(arguments.folder, texts, voices, speeds, espeak.synthesize, espeak.version)
    samples = 0
    with display_activity(SPEAKING, progress_console(plain_console())) as show:
        show(0, total)
        for done, clip in enumerate(clips, start=1):
            samples += clip.samples
            show(done, total)
    print(
        f"{total} clips: {len(texts)} questions at {' and '.join(map(str, speeds))} words per minute, by "
        f"{len(voices['train'])} voices for training and {len(voices['test'])} held out; "
        f"{samples / SAMPLE_RATE / 60:.0f} minutes"
    )
    print(f"Written to {arguments.folder}: clips/, {MANIFEST}")


COMMAND = cli.Command(
    name="mmjax.synthesize_speech",
    summary="Speaks the questions of easy-VQA, for spoken_vqa.gin.",
    examples=("--folder=speech",),
    arguments=SynthesizeSpeechArguments,
    prepare=prepare,
)
