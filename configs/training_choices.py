"""Fields of an architecture that say how it trains, and not what its weights mean."""

import dataclasses
from typing import Any

TRAINING_CHOICES = ("loss", "balance_weight", "condition_dropout", "logit_mean", "logit_std")
"""Names of these fields: loss functions and their weights, dropout, and at which noise levels a generator trains."""


def without_training_choices(config: Any) -> Any:
    """A configuration with the defaults of these fields, at any depth: equal for weights that mean the same."""
    if isinstance(config, tuple):
        return tuple(map(without_training_choices, config))
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    changed = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        plain = field.default if field.name in TRAINING_CHOICES else without_training_choices(value)
        if plain is not value:
            changed[field.name] = plain
    return dataclasses.replace(config, **changed)
