"""`python -m mmjax.profile`: times the layers of a configured model on this machine, for planning and simulation.

The profile is a JSON file with the device's name and the versions. `python -m mmjax.plan`, `mmjax.simulate` and
`mmjax.train` take it by --profile; they refuse one of other hardware unless told otherwise.
"""

import dataclasses
import functools
import pathlib
from typing import TYPE_CHECKING, cast

from mmjax import cli

if TYPE_CHECKING:
    from rich.table import Table

    from mmjax.training.config import TrainConfig
    from sharding.costs.profiled import Profile
    from sharding.specs.layer import RecomputePolicy


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileArguments(cli.GinArguments, cli.JsonArguments):
    """Flags of the command."""

    output: str = cli.flag("profile.json", "File to write.", metavar="FILE", parse=cli.output_file)
    tp: tuple[int, ...] = cli.flag(
        (1, 2),
        "Tensor-parallel sizes to measure, up to the number of devices.",
        metavar="SIZES",
        parse=cli.list_of(cli.integer(1)),
    )
    microbatch_rows: tuple[int, ...] = cli.flag(
        (1, 2, 4), "Rows of a replica's microbatch to measure.", metavar="ROWS", parse=cli.list_of(cli.integer(1))
    )
    recompute: str = cli.flag(
        "none",
        "Recomputation policy of every layer: none, selective, offload or full.",
        metavar="NAME",
        parse=cli.one_of("none", "selective", "offload", "full"),
    )
    steps: int = cli.flag(5, "Steps to time, after the first, which compiles.", metavar="N", parse=cli.integer(1))


def prepare(arguments: ProfileArguments) -> cli.Work:
    """Reads the configuration and the sizes to measure."""
    return functools.partial(profile, arguments, cli.training_config(arguments))


def profile(arguments: ProfileArguments, config: "TrainConfig") -> int:
    """Measures the profile, writes it, and prints it."""
    import jax
    from rich.console import Console

    from mmjax.training.metrics.activity import MEASURING, display_activity, progress_console
    from mmjax.training.profiling.layer_profile import MICROBATCHES, profile_model
    from mmjax.training.row_loads import first_batches

    most_rows = config.data.rows // MICROBATCHES
    rows = _sizes("microbatch_rows", arguments.microbatch_rows, most_rows, "half of the rows of the global batch")
    tps = _sizes("tp", arguments.tp, jax.local_device_count(), "devices")
    (batch,) = first_batches(config, 1)
    recompute = cast("RecomputePolicy", arguments.recompute)
    console = Console(highlight=False)
    with display_activity(MEASURING, progress_console(console, arguments.json)) as show:
        measured = profile_model(
            config.model, batch.arrays, config.engine_settings, tps, rows, recompute, arguments.steps, show
        )
    pathlib.Path(arguments.output).write_text(measured.to_json(), encoding="utf-8")
    if arguments.json:
        print(measured.to_json(), end="")
        return 0
    console.print(layer_table(measured))
    console.print(f"Written to {arguments.output}")
    return 0


def layer_table(profile: "Profile") -> "Table":
    """The times of a stack of one layer, by layer, tensor-parallel size and load."""
    from rich.table import Table

    table = Table(title=f"Milliseconds on one {profile.device_kind}")
    for name in ("layer", "tp", "recompute", "tokens or items", "forward", "backward"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    for layer in profile.layers:
        times = zip(layer.sizes, layer.forward.single_layer, layer.backward.single_layer, strict=True)
        for size, forward, backward in times:
            milliseconds = (f"{forward * 1e3:.2f}", f"{backward * 1e3:.2f}")
            table.add_row(layer.layer, str(layer.tp), layer.recompute, f"{size:g}", *milliseconds)
    return table


def _sizes(flag: str, values: tuple[int, ...], most: int, what: str) -> list[int]:
    """The numbers of a flag, ascending; raises UserError for one above `most`."""
    sizes = sorted(set(values))
    if not sizes or sizes[-1] > most:
        raise cli.UserError(f"--{flag}={','.join(map(str, values))}: give numbers from 1 to {most}, the {what}")
    return sizes


COMMAND = cli.Command(
    name="mmjax.profile",
    summary="Times the layers of a configured model on this machine, for planning and simulation.",
    examples=("--gin_file=easy_vqa.gin --tp=1,2 --output=profile.json",),
    arguments=ProfileArguments,
    prepare=prepare,
)
