"""`python -m benchmarks.moving_shapes --workdir=…`: does a trained model see which way shapes move?

It scores the held-out clips as training does, then each clip with the answer of another one, then every clip played
backwards, then with its first frame alone in all places. A model that does not look, or looks at single frames, gives
one answer in four; one that knows the order of frames gives the opposite answer to a clip played backwards.
"""

import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.changed_inputs import deranged, print_scores
from benchmarks.command import run_benchmark
from mmjax import cli


@dataclasses.dataclass(frozen=True, kw_only=True)
class MovingShapesArguments(cli.BindingArguments):
    """Flags of the command."""

    workdir: str = cli.flag(
        "", "Workdir of python -m mmjax.train; its newest whole checkpoint is used.", metavar="FOLDER"
    )
    clips: str = cli.flag("shapes", "What python -m mmjax.draw_clips wrote.", metavar="FOLDER")


def main(arguments: MovingShapesArguments) -> int:
    """Scores every source and prints a line for each."""
    from data.datasets.moving_shapes import moving_shapes

    workdir, clips = pathlib.Path(arguments.workdir), pathlib.Path(arguments.clips)
    config = cli.run_config(workdir, arguments)
    print(f"{'commonest answer':<36}{commonest_answer_accuracy(clips):.1%}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        changed = ((name, moving_shapes("test", str(folder))) for name, folder in sources(clips, pathlib.Path(scratch)))
        print_scores(config, workdir, config.data, changed)
    return 0


def answers_of(folder: pathlib.Path, split: str) -> list[str]:
    """The answer to every clip of a split."""
    return [entry["conversations"][1]["value"] for entry in json.loads((folder / f"{split}.json").read_text())]


def commonest_answer_accuracy(folder: pathlib.Path) -> float:
    """The share of held-out clips whose answer is the commonest of the training split."""
    known, asked = answers_of(folder, "train"), answers_of(folder, "test")
    commonest = max(sorted(set(known)), key=known.count)
    return asked.count(commonest) / len(asked)


def sources(clips: pathlib.Path, scratch: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """(name, folder): the held-out clips as they are, then changed."""
    yield "as it is", clips
    yield "other clips are shown", with_other_clips(clips, scratch / "other")
    yield "clips are played backwards", with_changed_frames(clips, scratch / "backwards", lambda frames: frames[::-1])
    yield (
        "the first frame alone is shown",
        with_changed_frames(clips, scratch / "still", lambda frames: np.repeat(frames[:1], len(frames), axis=0)),
    )


def with_other_clips(clips: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The held-out questions, each about another clip."""
    folder.mkdir()
    (folder / "clips").symlink_to((clips / "clips").absolute())
    entries = json.loads((clips / "test.json").read_text())
    for entry, other in zip(entries, deranged([entry["video"] for entry in entries]), strict=True):
        entry["video"] = other
    (folder / "test.json").write_text(json.dumps(entries))
    return folder


def with_changed_frames(
    clips: pathlib.Path, folder: pathlib.Path, change: Callable[[np.ndarray], np.ndarray]
) -> pathlib.Path:
    """The held-out questions about clips drawn anew with other frames, [frames, h, w, 3] to [frames, h, w, 3]."""
    from data.datasets.moving_shapes import FRAME_RATE, draw_clip
    from data.media.clips.video_writing import write_clip

    folder.mkdir()
    text = (clips / "test.json").read_text()
    for number, entry in enumerate(json.loads(text)):
        write_clip(folder / entry["video"], change(draw_clip("test", number).frames), FRAME_RATE)
    (folder / "test.json").write_text(text)
    return folder


if __name__ == "__main__":
    run_benchmark(
        main,
        MovingShapesArguments,
        name="benchmarks.moving_shapes",
        summary="Scores a trained model on clips of moving shapes, and on other, reversed and still ones.",
        examples=("--workdir=runs/shapes --clips=shapes",),
    )
