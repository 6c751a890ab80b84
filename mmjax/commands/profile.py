"""`python -m mmjax.profile`: times the layers of a configured model on this machine, for planning and simulation.

The profile is a JSON file with the device's name and the versions. `python -m mmjax.plan`, `mmjax.simulate` and
`mmjax.train` take it by --profile; they refuse one of other hardware unless told otherwise.
"""

import dataclasses
import functools
import itertools
import pathlib
from typing import TYPE_CHECKING, cast

from configs.common.whole_files import naming
from mmjax import cli

if TYPE_CHECKING:
    from rich.table import Table

    from mmjax.training.config import TrainConfig
    from sharding.axes import ContextTransfer
    from sharding.costs.profiled import Profile, TimedRanks
    from sharding.specs.layers.layer import RecomputePolicy


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
    cp: tuple[int, ...] = cli.flag(
        (1,),
        "Context-parallel sizes to measure, each with the tensor-parallel sizes for which there are devices.",
        metavar="SIZES",
        parse=cli.list_of(cli.integer(1)),
    )
    context_transfer: tuple[str, ...] = cli.flag(
        ("ring",),
        "How context-parallel ranks reach each other's positions: ring, all_to_all or both.",
        metavar="NAMES",
        parse=cli.list_of(cli.one_of("ring", "all_to_all")),
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

    from configs.common.console import plain_console
    from configs.common.tables import print_table
    from mmjax.training.metrics.activity import MEASURING, display_activity, progress_console
    from mmjax.training.profiling.layer_profile import MICROBATCHES, profile_model
    from mmjax.training.row_loads import first_batches

    most_rows = config.data.rows // MICROBATCHES
    rows = _sizes("microbatch_rows", arguments.microbatch_rows, most_rows, "half of the rows of the global batch")
    ranks = _ranks(arguments, jax.local_device_count())
    (batch,) = first_batches(config, 1)
    recompute = cast("RecomputePolicy", arguments.recompute)
    console = plain_console()
    with display_activity(MEASURING, progress_console(console, arguments.json)) as show:
        measured = profile_model(
            config.model, batch.arrays, config.engine_settings, ranks, rows, recompute, arguments.steps, show
        )
    with naming(arguments.output):
        pathlib.Path(arguments.output).write_text(measured.to_json(), encoding="utf-8")
    if arguments.json:
        print(measured.to_json(), end="")
        return 0
    print_table(layer_table(measured), console, keys=5)
    console.print(f"Written to {arguments.output}")
    return 0


def layer_table(profile: "Profile") -> "Table":
    """Returns the table of times of a stack of one layer, by layer, ranks and load."""
    from configs.common.tables import report_table

    columns = ("layer", "tp", "cp", "recompute", "tokens or items", "forward", "backward")
    table = report_table(f"Milliseconds on one {profile.device_kind}", *columns)
    for layer in profile.layers:
        cp = f"{layer.cp} {layer.context_transfer}" if layer.cp > 1 else "1"
        times = zip(layer.sizes, layer.forward.single_layer, layer.backward.single_layer, strict=True)
        for size, forward, backward in times:
            milliseconds = (f"{forward * 1e3:.2f}", f"{backward * 1e3:.2f}")
            table.add_row(layer.layer, str(layer.tp), cp, layer.recompute, f"{size:g}", *milliseconds)
    return table


def _ranks(arguments: ProfileArguments, devices: int) -> "list[TimedRanks]":
    """Returns the pairs of tensor and context-parallel ranks of a replica to time, as far as there are devices."""
    from sharding.costs.profiled import TimedRanks

    tps, cps = (_sizes(flag, getattr(arguments, flag), devices, "devices") for flag in ("tp", "cp"))
    if tps[0] * cps[-1] > devices:
        raise cli.UserError(
            f"--tp={','.join(map(str, tps))} --cp={','.join(map(str, cps))}: tp {tps[0]} x cp {cps[-1]} ranks need "
            f"{tps[0] * cps[-1]} devices, and there are {devices}"
        )
    transfers = cast("tuple[ContextTransfer, ...]", arguments.context_transfer)
    if not transfers:
        raise cli.UserError("--context_transfer=: give ring, all_to_all or both")
    choices = {
        TimedRanks(tp, cp, transfer if cp > 1 else "ring")
        for tp, cp, transfer in itertools.product(tps, cps, transfers)
        if tp * cp <= devices
    }
    return sorted(choices)


def _sizes(flag: str, values: tuple[int, ...], most: int, limit_name: str) -> list[int]:
    """Returns the numbers of a flag in ascending order; raises UserError for a number above `most`."""
    sizes = sorted(set(values))
    if not sizes or sizes[-1] > most:
        raise cli.UserError(f"--{flag}={','.join(map(str, values))}: give numbers from 1 to {most}, the {limit_name}")
    return sizes


COMMAND = cli.Command(
    name="mmjax.profile",
    summary="Times a model's layers on this machine, for planning.",
    examples=(
        "--gin_file=easy_vqa.gin --tp=1,2 --output=profile.json",
        "--gin_file=easy_vqa.gin --cp=1,2 --context_transfer=ring,all_to_all",
    ),
    arguments=ProfileArguments,
    prepare=prepare,
)
