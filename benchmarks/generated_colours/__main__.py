"""`python -m benchmarks.generated_colours --workdir=…`: do generated pictures have the colour asked for?

It asks for every colour and shape of easy-VQA in turn, every picture from a seed of its own. A small classifier,
trained on the real pictures at the generator's size, judges; its accuracy on the held-out ones is printed too.
"""

import dataclasses
import itertools
import json
import pathlib
import time
from typing import TYPE_CHECKING, Any

from benchmarks.command import run_benchmark
from mmjax import cli

if TYPE_CHECKING:
    import numpy as np

    from data.datasets.easy_vqa import EasyVQA  # reads the questions of the package

MIN_CLASSIFIER_ACCURACY = 0.97
"""Least share of held-out colours that the classifier must get right before its results are trusted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedColoursArguments(cli.BindingArguments, cli.JsonArguments):
    """Flags of the command."""

    workdir: str = cli.flag(
        "", "Workdir of python -m mmjax.train; its newest whole checkpoint is used.", metavar="FOLDER"
    )
    images: int = cli.flag(100, "Pictures to draw.", metavar="N", parse=cli.integer(1))
    sampling_steps: int = cli.flag(50, "Sampling steps of a picture.", metavar="N", parse=cli.integer(1))
    guidance: float = cli.flag(1.0, "Scale of classifier-free guidance; 1 for none.", metavar="X", parse=cli.number(0))
    seed: int = cli.flag(0, "Seed of the first picture; each has the next.", metavar="N", parse=cli.integer(0))
    table: str = cli.flag(
        "",
        "Image file to write the first picture of every colour, in columns, and shape to.",
        metavar="FILE",
        parse=cli.output_file,
    )


def main(arguments: GeneratedColoursArguments) -> int:
    """Generates and classifies pictures and prints the table. Returns 1 if the classifier cannot be trusted."""
    workdir = pathlib.Path(arguments.workdir)
    config = cli.run_config(workdir, arguments)
    from mmjax.generation.image_generation import ImageGenerator
    from mmjax.generation.trained_model import load_trained_model

    model = load_trained_model(workdir, config)
    sampling = Sampling(arguments.sampling_steps, arguments.guidance, arguments.seed)
    splits = (easy_vqa_of(config.dataset("train")), easy_vqa_of(config.dataset("test")))
    generator = ImageGenerator(model)
    result = measure(generator, model.step, splits, arguments.images, sampling)
    if arguments.table:
        from data.media.images import save_image

        save_image(pathlib.Path(arguments.table), draw_table(generator, sampling))
    print(json.dumps(result) if arguments.json else format_result(result))
    return 0 if result["judge"]["colour"] > MIN_CLASSIFIER_ACCURACY else 1


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How pictures are drawn.

    Attributes:
        steps: Sampling steps of a picture.
        guidance: Scale of classifier-free guidance.
        seed: Seed of the first picture.
    """

    steps: int
    guidance: float = 1.0
    seed: int = 0


def draw_table(drawer: Any, sampling: Sampling) -> "np.ndarray":
    """The picture of every colour and shape that `measure` draws first, colours in columns, in [-1, 1]."""
    import numpy as np

    from benchmarks.generated_colours.picture_table import picture_table
    from data.datasets.easy_vqa import colours_and_shapes
    from data.datasets.easy_vqa import describe_shape as description

    colours, shapes = map(sorted, colours_and_shapes())
    texts = [description(colour, shape) for colour, shape in itertools.product(colours, shapes)]
    pictures = drawer.generate(
        texts, range(sampling.seed, sampling.seed + len(texts)), sampling.steps, sampling.guidance
    )
    return picture_table(np.asarray(pictures).reshape(len(colours), len(shapes), *pictures.shape[1:]))


def easy_vqa_of(dataset: Any) -> "EasyVQA":
    """The easy-VQA that a data set is, or reads its pictures from.

    Raises:
        UserError: It is another data set.
    """
    from data.datasets.easy_vqa import EasyVQA

    source = getattr(dataset, "easy_vqa", dataset)
    if not isinstance(source, EasyVQA):
        raise cli.UserError(f"TrainConfig.dataset makes a {type(dataset).__name__}; the judge knows easy-VQA alone")
    return source


def measure(
    drawer: Any, trained_steps: int, splits: "tuple[EasyVQA, EasyVQA]", images: int, sampling: Sampling
) -> dict[str, Any]:
    """How many of the pictures that an `ImageGenerator` draws have the colour and the shape asked for.

    Args:
        drawer: The `ImageGenerator`.
        trained_steps: Steps that its model was trained for.
        splits: The train split, from whose pictures the judge learns, and the test split, on which it is tried.
        images: Pictures to draw.
        sampling: How they are drawn.
    """
    import numpy as np

    from benchmarks.generated_colours.classifier import labelled_images, train_classifier
    from data.datasets.easy_vqa import describe_shape as description

    side = drawer.config.image_size
    begin = time.perf_counter()
    train, test = splits
    judge = train_classifier(labelled_images(train, side))
    held_out = labelled_images(test, side)
    trusted = judge.accuracies(held_out.images, held_out.labels)
    judged = time.perf_counter()

    colours, shapes = judge.names
    pairs = itertools.cycle(itertools.product(range(len(colours)), range(len(shapes))))
    asked = np.array(list(itertools.islice(pairs, images)), np.int32)
    texts = [description(colours[colour], shapes[shape]) for colour, shape in asked]
    pictures = drawer.generate(texts, range(sampling.seed, sampling.seed + images), sampling.steps, sampling.guidance)
    drawn = time.perf_counter()
    right = judge(pictures) == asked
    return {
        "images": images,
        "colour": int(right[:, 0].sum()),
        "shape": int(right[:, 1].sum()),
        "by_colour": {
            name: {
                "images": int((asked[:, 0] == number).sum()),
                "colour": int(right[asked[:, 0] == number, 0].sum()),
                "shape": int(right[asked[:, 0] == number, 1].sum()),
            }
            for number, name in enumerate(colours)
        },
        "judge": {"images": len(held_out.images), "colour": round(trusted[0], 4), "shape": round(trusted[1], 4)},
        "trained_steps": trained_steps,
        "sampling_steps": sampling.steps,
        "guidance": sampling.guidance,
        "seed": sampling.seed,
        "seconds": {"judge": round(judged - begin, 1), "draw": round(drawn - judged, 1)},
    }


def format_result(result: dict[str, Any]) -> str:
    """The result as a table."""
    lines = [f"{'asked for':<10}{'pictures':>10}{'right colour':>14}{'right shape':>13}"]
    for name, score in {**result["by_colour"], "all": result}.items():
        lines.append(f"{name:<10}{score['images']:>10}{score['colour']:>14}{score['shape']:>13}")
    judge = result["judge"]
    lines.append(
        f"The judge gets {judge['colour']:.1%} of colours and {judge['shape']:.1%} of shapes right on "
        f"{judge['images']} real held-out pictures"
    )
    if judge["colour"] <= MIN_CLASSIFIER_ACCURACY:
        lines.append(f"That is not above {MIN_CLASSIFIER_ACCURACY:.0%} of colours: the judge's verdict means nothing")
    return "\n".join(lines)


if __name__ == "__main__":
    run_benchmark(
        main,
        GeneratedColoursArguments,
        name="benchmarks.generated_colours",
        summary="Counts how many generated pictures have the colour that was asked for.",
        examples=("--workdir=runs/easy --images=20",),
    )
