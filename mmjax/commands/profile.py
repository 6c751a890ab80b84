"""`python -m mmjax.profile`: times the layers of a configured model on this machine, for planning and simulation.

The profile is a JSON file with the device's name and the versions. `python -m mmjax.plan`, `mmjax.simulate` and
`mmjax.train` take it by --profile; they refuse one of other hardware unless told otherwise.
"""

import pathlib
from typing import TYPE_CHECKING, cast

from absl import flags

from mmjax import cli

if TYPE_CHECKING:
    from rich.table import Table

    from sharding.costs.profiled import Profile
    from sharding.specs.layer import RecomputePolicy

_OUTPUT = flags.DEFINE_string("output", "profile.json", "File to write.")
_TP = flags.DEFINE_list("tp", ["1", "2"], "Tensor-parallel sizes to measure, up to the number of devices.")
_ROWS = flags.DEFINE_list("microbatch_rows", ["1", "2", "4"], "Rows of a replica's microbatch to measure.")
_RECOMPUTE = flags.DEFINE_enum(
    "recompute", "none", ["none", "selective", "full"], "Recomputation policy of every layer."
)
_STEPS = flags.DEFINE_integer("steps", 5, "Steps to time, after the first, which compiles.", lower_bound=1)
_JSON = flags.DEFINE_bool("json", False, "Print the profile as one JSON object instead of a table.")


def main() -> int:
    """Measures the profile, writes it, and prints it."""
    cli.parse_gin("quickstart.gin")
    import jax
    from rich.console import Console

    from mmjax.training.config import TrainConfig
    from mmjax.training.profiling.layer_profile import MICROBATCHES, profile_model
    from mmjax.training.row_loads import first_batches

    config = cli.configured(TrainConfig)
    most_rows = config.data.rows // MICROBATCHES
    rows = _numbers("microbatch_rows", _ROWS.value, most_rows, "half of the rows of the global batch")
    tps = _numbers("tp", _TP.value, jax.local_device_count(), "devices")
    (batch,) = first_batches(config, 1)
    settings = config.engine_settings
    recompute = cast("RecomputePolicy", _RECOMPUTE.value)
    profile = profile_model(config.model, batch.arrays, settings, tps, rows, recompute, _STEPS.value)
    pathlib.Path(_OUTPUT.value).write_text(profile.to_json(), encoding="utf-8")
    if _JSON.value:
        print(profile.to_json(), end="")
        return 0
    console = Console(highlight=False)
    console.print(layer_table(profile))
    console.print(f"Written to {_OUTPUT.value}")
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


def _numbers(flag: str, values: list[str], most: int, what: str) -> list[int]:
    """The numbers of a flag, ascending; raises UserError for one below 1 or above `most`."""
    from configs.errors import UserError

    try:
        numbers = sorted({int(value) for value in values})
    except ValueError as error:
        raise UserError(f"--{flag}={','.join(values)}: give whole numbers, separated by commas") from error
    if not numbers or numbers[0] < 1 or numbers[-1] > most:
        raise UserError(f"--{flag}={','.join(values)}: give numbers from 1 to {most}, the {what}")
    return numbers
