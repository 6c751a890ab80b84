"""`python -m mmjax.synthesize_speech`: has espeak-ng speak the questions of easy-VQA, in voices of the training and test split.

    python -m mmjax.synthesize_speech --folder=speech
    python -m mmjax.train --gin_file=spoken_vqa.gin --gin.SPEECH="'speech'"

Stopped half-way, it goes on from there when it is called again.
"""

from absl import flags

from mmjax import cli

_FOLDER = flags.DEFINE_string("folder", "speech", "Where the clips and their manifest are written.")
_VOICES = flags.DEFINE_list(
    "voices",
    ["en-us", "en-us+m1", "en-us+m3", "en-us+m5", "en-us+f1", "en-us+f3", "en-gb", "en-gb+m2", "en-gb+m6", "en-gb+f2"],
    "Voices of the training split: languages and variants of espeak-ng.",
)
_HELD_OUT = flags.DEFINE_list(
    "held_out_voices", ["en-us+m7", "en-gb+f4", "en-gb-scotland+m4"], "Those of the test split."
)
_SPEEDS = flags.DEFINE_list("speeds", ["180", "230"], "Words a minute.")


def main() -> None:
    """Speaks what is not there yet, and says what was written."""
    from rich.console import Console
    from rich.progress import track

    from configs.errors import UserError
    from data.datasets.easy_vqa import EasyVQA
    from data.datasets.spoken_clips import MANIFEST, write_spoken_clips
    from data.media.audio import SAMPLE_RATE
    from data.media.espeak import Espeak

    try:
        speeds = [int(speed) for speed in _SPEEDS.value]
    except ValueError as error:
        raise UserError(f"--speeds={','.join(_SPEEDS.value)}: give whole numbers of words a minute") from error
    espeak = Espeak()
    espeak.check_voices([*_VOICES.value, *_HELD_OUT.value], speeds)
    texts = sorted({question for split in ("train", "test") for question, _ in EasyVQA(split).questions})
    voices = {"train": _VOICES.value, "test": _HELD_OUT.value}
    total = len(texts) * len(speeds) * sum(map(len, voices.values()))
    clips = write_spoken_clips(_FOLDER.value, texts, voices, speeds, espeak.synthesize, espeak.version)
    samples = sum(clip.samples for clip in track(clips, "Speaking", total, console=Console(stderr=True)))
    print(
        f"{total} clips: {len(texts)} questions at {' and '.join(map(str, speeds))} words a minute, by "
        f"{len(voices['train'])} voices to train and {len(voices['test'])} held out; {samples / SAMPLE_RATE / 60:.0f} minutes"
    )
    print(f"Written to {_FOLDER.value}: clips/, {MANIFEST}")


if __name__ == "__main__":
    cli.run(main, distributed=False)
