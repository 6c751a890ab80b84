"""`python -m mmjax.draw_clips`: writes the video files of moving shapes, and the question about each."""

import dataclasses
import functools

from mmjax import cli


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawClipsArguments:
    """Flags of the command."""

    folder: str = cli.flag(
        "shapes",
        "Folder to which the clips and their questions are written.",
        metavar="FOLDER",
        parse=cli.output_folder,
    )
    train: int = cli.flag(4000, "Clips of the training split.", metavar="N", parse=cli.integer(1))
    test: int = cli.flag(400, "Clips of the test split.", metavar="N", parse=cli.integer(1))


def prepare(arguments: DrawClipsArguments) -> cli.Work:
    """Imports the writer of video files, which needs the extra `video`."""
    import data.media.clips.video_writing  # noqa: F401  (raises without the extra `video`)

    return functools.partial(draw, arguments)


def draw(arguments: DrawClipsArguments) -> None:
    """Writes the clips, and prints a summary."""
    from configs.common.console import plain_console
    from data.datasets.moving_shapes import write_moving_shapes
    from mmjax.training.metrics.activity import DRAWING, display_activity, progress_console

    counts = {"train": arguments.train, "test": arguments.test}
    files = write_moving_shapes(arguments.folder, counts)
    total = sum(counts.values()) + len(counts)
    size = 0
    with display_activity(DRAWING, progress_console(plain_console())) as show:
        show(0, total)
        for done, file in enumerate(files, start=1):
            size += file.stat().st_size
            show(done, total)
    print(
        f"{arguments.train} clips for training and {arguments.test} held out; {size / 2**20:.1f} MiB\n"
        f"Written to {arguments.folder}: clips/, train.json, test.json"
    )


COMMAND = cli.Command(
    name="mmjax.draw_clips",
    summary="Draws video clips of moving shapes, for moving_shapes.gin.",
    examples=("--folder=shapes",),
    arguments=DrawClipsArguments,
    prepare=prepare,
)
