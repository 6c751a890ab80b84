"""`python -m mmjax.profile`: times the layers of a configured model on this machine, for the planner and the simulator.

The profile is a JSON file with the device's name and the versions. `python -m mmjax.plan`, `mmjax.simulate` and
`mmjax.train` take it by --profile; they refuse one of other hardware unless told otherwise.
"""

import pathlib

from absl import flags

from mmjax import cli

_OUTPUT = flags.DEFINE_string("output", "profile.json", "File to write.")
_TP = flags.DEFINE_list("tp", ["1", "2"], "Numbers of tensor ranks, as many as there are devices for.")
_ROWS = flags.DEFINE_list("rows", ["1", "2", "4"], "Rows of an instance's microbatch.")
_RECOMPUTE = flags.DEFINE_enum("recompute", "none", ["none", "selective", "full"], "What the backward computes again.")
_STEPS = flags.DEFINE_integer("steps", 5, "Steps to time for each, after the first.", lower_bound=1)
_JSON = flags.DEFINE_bool("json", False, "Print the profile as one JSON object instead of a table.")


def main() -> int:
    """Measures, writes, and prints what was found."""
    cli.parse_gin("quickstart.gin")
    import jax
    from rich.console import Console
    from rich.table import Table

    from mmjax.training.config import TrainConfig
    from mmjax.training.profiling.layer_profile import MICROBATCHES, profile_model
    from mmjax.training.row_loads import first_batches

    config = cli.configured(TrainConfig)
    rows = _numbers("rows", _ROWS.value, config.data.rows // MICROBATCHES, "half of the rows of the global batch")
    tps = _numbers("tp", _TP.value, jax.local_device_count(), "devices")
    (batch,) = first_batches(config, 1)
    found = profile_model(config.model, batch.arrays, config.engine_settings, tps, rows, _RECOMPUTE.value, _STEPS.value)
    pathlib.Path(_OUTPUT.value).write_text(found.to_json(), encoding="utf-8")
    if _JSON.value:
        print(found.to_json(), end="")
        return 0
    console = Console(highlight=False)
    table = Table(title=f"Milliseconds on one {found.device_kind}, recompute {_RECOMPUTE.value}")
    for name in ("layer", "tp", "tokens or items", "forward", "backward"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    for layer in found.layers:
        passes = (layer.forward.single_layer, layer.backward.single_layer)
        for size, forward, backward in zip(layer.sizes, *passes, strict=True):
            table.add_row(layer.layer, str(layer.tp), f"{size:g}", f"{forward * 1e3:.2f}", f"{backward * 1e3:.2f}")
    console.print(table)
    console.print(f"Written to {_OUTPUT.value}")
    return 0


def _numbers(flag: str, values: list[str], most: int, what: str) -> list[int]:
    """The numbers of a flag, ascending; those above what there is are refused."""
    from configs.errors import UserError

    try:
        numbers = sorted({int(value) for value in values})
    except ValueError as error:
        raise UserError(f"--{flag}={','.join(values)}: give whole numbers, separated by commas") from error
    if not numbers or numbers[0] < 1 or numbers[-1] > most:
        raise UserError(f"--{flag}={','.join(values)}: give numbers from 1 to {most}, the {what}")
    return numbers


if __name__ == "__main__":
    cli.run(main)
