"""`python -m mmjax.synthesize_speech`: espeak-ng speaks the questions of easy-VQA, in voices of both splits.

    python -m mmjax.synthesize_speech --folder=speech
    python -m mmjax.train --gin_file=spoken_vqa.gin --gin.SPEECH="'speech'"

Interrupted, it continues when it is called again.
"""

from absl import flags

_FOLDER = flags.DEFINE_string("folder", "speech", "Folder to which the clips and their manifest are written.")
_VOICES = flags.DEFINE_list(
    "voices",
    ["en-us", "en-us+m1", "en-us+m3", "en-us+m5", "en-us+f1", "en-us+f3", "en-gb", "en-gb+m2", "en-gb+m6", "en-gb+f2"],
    "Voices of the training split: languages and variants of espeak-ng.",
)
_HELD_OUT_VOICES = flags.DEFINE_list(
    "held_out_voices", ["en-us+m7", "en-gb+f4", "en-gb-scotland+m4"], "Voices of the test split."
)
_SPEEDS = flags.DEFINE_list("speeds", ["180", "230"], "Words per minute.")


def main() -> None:
    """Synthesizes the clips that do not exist yet, and prints a summary."""
    from rich.console import Console
    from rich.progress import track

    from configs.errors import UserError
    from data.datasets.easy_vqa import EasyVQA
    from data.datasets.spoken_clips import MANIFEST, write_spoken_clips
    from data.media.espeak import Espeak
    from data.media.mel import SAMPLE_RATE

    try:
        speeds = [int(speed) for speed in _SPEEDS.value]
    except ValueError as error:
        raise UserError(f"--speeds={','.join(_SPEEDS.value)}: give whole numbers of words per minute") from error
    espeak = Espeak()
    espeak.check_voices([*_VOICES.value, *_HELD_OUT_VOICES.value], speeds)
    texts = sorted({question for split in ("train", "test") for question, _ in EasyVQA(split).questions})
    voices = {"train": _VOICES.value, "test": _HELD_OUT_VOICES.value}
    total = len(texts) * len(speeds) * sum(map(len, voices.values()))
    clips = write_spoken_clips(_FOLDER.value, texts, voices, speeds, espeak.synthesize, espeak.version)
    samples = sum(clip.samples for clip in track(clips, "Speaking", total, console=Console(stderr=True)))
    print(
        f"{total} clips: {len(texts)} questions at {' and '.join(map(str, speeds))} words per minute, by "
        f"{len(voices['train'])} voices for training and {len(voices['test'])} held out; "
        f"{samples / SAMPLE_RATE / 60:.0f} minutes"
    )
    print(f"Written to {_FOLDER.value}: clips/, {MANIFEST}")
