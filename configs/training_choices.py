"""Fields of an architecture that say how it trains, and fields that a run may change of published weights.

Comparisons of a run with a published config.json or a checkpoint leave them out.
"""

import dataclasses
from typing import Any

TRAINING_CHOICES = ("loss", "balance_weight", "condition_dropout", "logit_mean", "logit_std")
"""Fields that do not change the outputs of given weights: losses, their weights, dropout, a generator's noise."""

PRETRAINED_CHANGES = ("vocabulary", "rope_base", "local_rope_base")
"""Fields of a backbone that may differ from the published configuration, where a run names them
(`TrainConfig.pretrained_changes`): more rows of the vocabulary, and other rotary frequencies."""


def without_training_choices(config: Any) -> Any:
    """A configuration in which these fields have their defaults, at any depth, for comparisons of the others."""
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
