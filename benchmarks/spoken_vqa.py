"""`python -m benchmarks.spoken_vqa --workdir=…`: does a trained model use its speech and images?

It scores the held-out questions as training does, then with clips that say other questions, then with other images. A
model that answered from the image alone would lose nothing by the former, and one that did not look nothing by the
latter. What can be reached without looking is the commonest answer to each question.
"""

import collections
import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.changed_inputs import deranged, print_scores
from benchmarks.command import run_benchmark
from mmjax import cli

if TYPE_CHECKING:
    from data.datasets.dataset import Dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpokenVQAArguments(cli.BindingArguments):
    """Flags of the command."""

    workdir: str = cli.flag(
        "", "Workdir of python -m mmjax.train; its newest whole checkpoint is used.", metavar="FOLDER"
    )
    speech: str = cli.flag("speech", "What python -m mmjax.synthesize_speech wrote.", metavar="FOLDER")


def main(arguments: SpokenVQAArguments) -> int:
    """Scores every source and prints a line for each."""
    workdir = pathlib.Path(arguments.workdir)
    config = cli.run_config(workdir, arguments)
    print(f"{'commonest answer to each question':<36}{commonest_answer_accuracy():.1%}", flush=True)
    # Other questions may be longer than the question of any sample.
    longer = dataclasses.replace(config.data, frames=2 * config.data.frames)
    with tempfile.TemporaryDirectory() as scratch:
        print_scores(config, workdir, longer, sources(arguments.speech, scratch))
    return 0


def commonest_answer_accuracy() -> float:
    """The share of held-out questions that the training split's commonest answer to each answers."""
    from data.datasets.easy_vqa import EasyVQA

    answers: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for question, answer in EasyVQA("train").questions:
        answers[question][answer] += 1
    asked = EasyVQA("test").questions
    return sum(answer == answers[question].most_common(1)[0][0] for question, answer in asked) / len(asked)


def sources(speech: str, scratch: str) -> "Iterator[tuple[str, Dataset]]":
    """(name, source): the test split as it is, with clips of other questions, and with other images."""
    import easy_vqa

    from data.datasets.easy_vqa import EasyVQA
    from data.datasets.spoken_easy_vqa import SpokenEasyVQA

    yield "as it is", SpokenEasyVQA("test", speech)
    write_mismatched_speech(pathlib.Path(speech), pathlib.Path(scratch))
    yield "other questions are heard", SpokenEasyVQA("test", scratch)
    paths = easy_vqa.get_test_image_paths()
    others = dict(zip(paths, deranged(list(paths.values())), strict=True))
    yield "other images are shown", SpokenEasyVQA("test", speech, easy_vqa=EasyVQA("test", others))


def write_mismatched_speech(speech: pathlib.Path, folder: pathlib.Path) -> None:
    """A folder of the same clips whose manifest gives each clip another question."""
    from data.datasets.spoken_clips import MANIFEST

    (folder / "clips").symlink_to((speech / "clips").absolute())
    document = json.loads((speech / MANIFEST).read_text())
    texts = sorted({clip["text"] for clip in document["clips"]})
    other = dict(zip(texts, deranged(texts), strict=True))
    for clip in document["clips"]:
        clip["text"] = other[clip["text"]]
    (folder / MANIFEST).write_text(json.dumps(document))


if __name__ == "__main__":
    run_benchmark(
        main,
        SpokenVQAArguments,
        name="benchmarks.spoken_vqa",
        summary="Scores a trained model on questions with other clips, and with other images.",
        examples=("--workdir=runs/spoken --speech=speech",),
    )
