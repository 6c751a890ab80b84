"""Fingerprints: everything that decides which samples form step k, to compare a saved state with a configuration.

The data state in a checkpoint keeps one, and requests to producers carry one.
"""

from collections.abc import Mapping
from typing import Any

from data.data_config import DataConfig
from data.datasets.dataset import SampleIndex


def step_fingerprint(config: DataConfig, sample_index: SampleIndex, purpose: str) -> dict[str, Any]:
    """Everything that decides which samples form step k, as JSON values."""
    return {
        "order": purpose,
        **{name: getattr(config, name) for name in ("seed", "rows", "window", "grouping")},
        "isf_thresholds": dict(config.isf_thresholds),
        "mixture": [list(share) for share in config.shares(sample_index.counts).items()],
        **config.capacity.units,
        "samples": config.samples,
        "samples_of_kinds": dict(sample_index.counts),
    }


def fingerprint_differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """The differences between two fingerprints, as `name theirs -> ours`; empty if there are none."""
    theirs, ours = _with_dotted_names(theirs), _with_dotted_names(ours)
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return ", ".join(f"{name} {theirs.get(name)!r} -> {ours.get(name)!r}" for name in names)


def _with_dotted_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of nested mappings, by names such as `model.patches.merge`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        nested = _with_dotted_names(value) if isinstance(value, Mapping) else None
        flat |= {name: value} if nested is None else {f"{name}.{inner}": leaf for inner, leaf in nested.items()}
    return flat
