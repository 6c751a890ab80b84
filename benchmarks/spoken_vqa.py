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
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from mmjax import cli

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpokenVQAArguments(cli.BindingArguments):
    """Flags of the command."""

    workdir: str = cli.flag(
        "", "Workdir of python -m mmjax.train; its newest whole checkpoint is used.", metavar="FOLDER"
    )
    speech: str = cli.flag("speech", "What python -m mmjax.synthesize_speech wrote.", metavar="FOLDER")


def main(arguments: SpokenVQAArguments) -> int:
    """Scores every source and prints a line for each."""
    import jax

    workdir = pathlib.Path(arguments.workdir)
    config = cli.run_config(workdir, arguments)
    print(f"{'commonest answer to each question':<36}{commonest_answer_accuracy():.1%}", flush=True)
    # Other questions may be longer than the question of any sample.
    longer = dataclasses.replace(config.data, frames=2 * config.data.frames)
    score = make_scorer(config, workdir, jax.devices()[:1], longer)
    with tempfile.TemporaryDirectory() as scratch:
        for name, source in sources(arguments.speech, scratch):
            begin = time.perf_counter()
            result = score(source)
            print(
                f"{name:<36}{result.accuracy:.1%} of {result.questions}, {time.perf_counter() - begin:.0f} s",
                flush=True,
            )
    return 0


def commonest_answer_accuracy() -> float:
    """The share of held-out questions that the training split's commonest answer to each answers."""
    from data.datasets.easy_vqa import EasyVQA

    answers: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for question, answer in EasyVQA("train").questions:
        answers[question][answer] += 1
    asked = EasyVQA("test").questions
    return sum(answer == answers[question].most_common(1)[0][0] for question, answer in asked) / len(asked)


def sources(speech: str, scratch: str) -> Iterator[tuple[str, object]]:
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


def deranged(items: Sequence[Item]) -> list[Item]:
    """The items in an order in which none keeps its place: each takes its neighbour's in a random ring."""
    import numpy as np

    ring = np.random.default_rng(0).permutation(len(items))
    order = list(items)
    for place, taken in zip(ring, np.roll(ring, 1), strict=True):
        order[place] = items[taken]
    return order


def make_scorer(config, workdir: pathlib.Path, devices, data):
    """Makes a function that scores a source by the newest checkpoint, on one device, in a configuration's rows."""
    from data.packing.pipeline import evaluation_batches
    from mmjax.training.checkpoints.manager import CheckpointManager
    from mmjax.training.engine.engine import Engine
    from mmjax.training.evaluation import evaluate_answers
    from sharding.plans.plan import single_device_plan
    from sharding.specs.modules import module_graph

    def batches(source):
        return evaluation_batches(data, config.model, source)

    plan = single_device_plan(module_graph(config.model))
    first = batches(config.dataset("test"))
    engine = Engine(config.model, plan, next(first).arrays, config.engine_settings)
    first.close()
    checkpoints = CheckpointManager(workdir / "checkpoints", config.model)
    state, _, _ = checkpoints.restore(engine)
    checkpoints.close()

    def score(source):
        held_out = batches(source)
        try:
            return evaluate_answers(engine, state, held_out)
        finally:
            held_out.close()

    return score


COMMAND = cli.Command(
    name="benchmarks.spoken_vqa",
    summary="Scores a trained model on questions with other clips, and with other images.",
    examples=("--workdir=runs/spoken --speech=speech",),
    arguments=SpokenVQAArguments,
    prepare=lambda arguments: lambda: main(arguments),
)

if __name__ == "__main__":
    cli.run(COMMAND)
