"""The end state of a run, compared with the undisturbed run's: losses, samples, last checkpoint, refusals."""

import collections
import dataclasses
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.faults.audited_data import read_samples
from benchmarks.faults.training_run import IMAGES, STEPS, RunFolder
from configs.common.strict_json import read_json_file, read_json_lines
from mmjax.training.metrics.metrics_file import read_metrics

TOLERANCE = 3e-5
"""Largest relative difference of losses, and of all arrays of a kind, where another plan adds in another order."""

_OPTIMIZER_FIELD = re.compile(r"\[\d+\]\['(\w+)'\]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndState:
    """The results that a finished run leaves.

    Attributes:
        losses: By step: losses and the gradient's norm.
        samples: By step: ids of its samples; empty where producers loaded them.
        parameters: The parameters of the last checkpoint, by path.
        optimizer: The optimizer state of the last checkpoint, by path.
        data: The data state of that checkpoint: which samples are next.
        refused: Numbers of the images that were refused.
    """

    losses: Mapping[int, Mapping[str, float]]
    samples: Mapping[int, Sequence[int]]
    parameters: Mapping[str, np.ndarray]
    optimizer: Mapping[str, np.ndarray]
    data: Any
    refused: frozenset[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """How a run differs from the undisturbed one.

    Attributes:
        lost: Samples of the epoch that no step had.
        repeated: Samples of the epoch that steps had more than once, each counted as often as it was too much.
        differing_steps: Steps that are missing, or have other samples or losses.
        difference: Norm of the difference of all parameters over their norm; 0 only if all are the same bit for bit.
            Not by array: where the true gradient is zero, as for the bias of keys, an adaptive optimizer makes of
            rounding what is as large as any update.
        optimizer_difference: This difference of the optimizer state; the largest of its fields, such as `mu` and `nu`.
        data_differs: Whether other samples would be next.
        refused_wrongly: Images that are refused and not damaged, or damaged and not refused.
        equal: Whether the end state is the same: bit for bit, or to `TOLERANCE` where the plan changed.
    """

    lost: int
    repeated: int
    differing_steps: tuple[int, ...]
    difference: float
    optimizer_difference: float
    data_differs: bool
    refused_wrongly: tuple[int, ...]
    equal: bool


def read_end_state(folder: RunFolder) -> EndState:
    """Reads the end state of a finished run."""
    import jax

    import mmjax
    from mmjax.training.checkpoints.json_files import HOST_FILE
    from mmjax.training.checkpoints.restoring import restore_parameters

    config = mmjax.load(folder.gin)
    parameters, newest = restore_parameters(folder.checkpoints, config.model, jax.devices()[0])
    host = read_json_file(folder.checkpoints / str(newest) / HOST_FILE)
    return EndState(
        losses=_losses(folder.workdir),
        samples={line["step"]: line["samples"] for line in read_samples(folder.workdir)},
        parameters=_by_path(parameters),
        optimizer=_by_path(_read_tree(folder.checkpoints / str(newest) / "optimizer")),
        data=host["data"],
        refused=_refused(folder.workdir),
    )


def _by_path(tree: Any) -> dict[str, np.ndarray]:
    import jax

    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _read_tree(folder: pathlib.Path) -> Any:
    """All arrays of a tree of a checkpoint, whatever it holds."""
    import jax
    import orbax.checkpoint as ocp
    from etils import epath

    handler, path = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True), epath.Path(folder)
    wanted = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), handler.metadata(path).tree)
    return handler.restore(path, args=ocp.args.PyTreeRestore(restore_args=wanted))


def compare(actual: EndState, undisturbed: EndState, exact: bool, by_id: bool, damaged: frozenset[int]) -> Comparison:
    """Compares a run with the undisturbed one.

    Args:
        actual: The end state of the run.
        undisturbed: The end state of the undisturbed run, with the same damaged images from its beginning.
        exact: Whether every bit must be the same: the plan and the number of processes never changed.
        by_id: Whether the ids of the samples of each step are known.
        damaged: Images that were damaged.
    """
    tolerance = 0.0 if exact else TOLERANCE
    lost, repeated = count_samples(actual.samples) if by_id else (0, 0)
    differing = tuple(
        step
        for step in range(1, STEPS + 1)
        if not _same_numbers(actual.losses.get(step), undisturbed.losses[step], tolerance)
        or (by_id and actual.samples.get(step) != undisturbed.samples[step])
    )
    difference = _relative_difference(actual.parameters, undisturbed.parameters)
    optimizer_difference = _optimizer_difference(actual.optimizer, undisturbed.optimizer)
    data_differs = actual.data != undisturbed.data
    wrongly = tuple(sorted(actual.refused ^ damaged))
    return Comparison(
        lost=lost,
        repeated=repeated,
        differing_steps=differing,
        difference=difference,
        optimizer_difference=optimizer_difference,
        data_differs=data_differs,
        refused_wrongly=wrongly,
        equal=not (lost or repeated or differing or data_differs or wrongly)
        and max(difference, optimizer_difference) <= tolerance,
    )


def count_samples(samples: Mapping[int, Sequence[int]]) -> tuple[int, int]:
    """Samples of the epoch that no step had, and how often a step had one that another, or it, had before."""
    times = collections.Counter(sample for step_samples in samples.values() for sample in step_samples)
    return IMAGES - len(times), times.total() - len(times)


def _losses(workdir: pathlib.Path) -> dict[int, dict[str, float]]:
    return {
        line["step"]: {name: value for name, value in line.items() if name.startswith("loss/") or "norm" in name}
        for line in read_metrics(workdir)
        if "gradient_norm" in line
    }


def _refused(workdir: pathlib.Path) -> frozenset[int]:
    lists = [workdir / "unreadable.jsonl", *workdir.glob("process_*/unreadable.jsonl")]
    entries = [entry for path in lists for _, entry in read_json_lines(path)]
    return frozenset(int(pathlib.Path(entry["key"]).stem) for entry in entries)


def _same_numbers(actual: Mapping[str, float] | None, expected: Mapping[str, float], tolerance: float) -> bool:
    if actual is None or actual.keys() != expected.keys():
        return False
    return all(abs(actual[name] - value) <= tolerance * abs(value) for name, value in expected.items())


def _relative_difference(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    pairs = [(actual[name].astype(np.float64), array.astype(np.float64)) for name, array in expected.items()]
    difference = math.sqrt(sum(np.sum((mine - theirs) ** 2) for mine, theirs in pairs))
    norm = math.sqrt(sum(np.sum(theirs**2) for _, theirs in pairs))
    return difference / norm if norm else difference


def _optimizer_difference(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest relative difference of a field: second moments are far smaller than first ones and counts."""
    if actual.keys() != expected.keys():
        return math.inf
    fields: dict[str, dict[str, np.ndarray]] = collections.defaultdict(dict)
    for path, array in expected.items():
        field = _OPTIMIZER_FIELD.search(path)
        fields[field[1] if field else path][path] = array
    return max((_relative_difference(actual, arrays) for arrays in fields.values()), default=0.0)
