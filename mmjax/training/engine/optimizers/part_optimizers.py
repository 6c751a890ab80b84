"""The optimizers of trainable parts: the settings of each part that trains, and the learning rates that a run reports.

The engine's building makes one optimizer for each part; the training loop reports their rates.
"""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from configs.common.errors import UserError
from configs.optimizer import OptimizerConfig
from mmjax.models.structure.module import Module
from mmjax.training.engine.optimizers.hyperparameters import Hyperparameters, learning_rate, make_hyperparameters
from sharding.plans.resolved.trained_parts import find_parts
from sharding.specs.modules import ModuleGraph

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class RunHyperparameters:
    """The hyperparameters of a run that its programs take as arguments.

    Attributes:
        max_grad_norm: Global norm above which gradients are scaled down; 0 turns clipping off.
        by_piece: Hyperparameters of the updates, by `module/piece` of the pieces that train.
    """

    max_grad_norm: float
    by_piece: Mapping[str, Hyperparameters]


@dataclasses.dataclass(frozen=True)
class PartOptimizers:
    """The optimizers of the parts that train.

    Attributes:
        default: The optimizer of parts without settings of their own.
        by_part: The optimizer of every part that trains.
        steps: Steps of the run.
    """

    default: OptimizerConfig
    by_part: Mapping[str, OptimizerConfig]
    steps: int

    def hyperparameters(self, modules: tuple[Module, ...]) -> RunHyperparameters:
        """Returns the arguments of the updates of all parts that train."""
        by_piece = {
            f"{module.name}/{piece.name}": make_hyperparameters(self.by_part[piece.part], self.steps)
            for module in modules
            for piece in module.pieces
            if piece.part in self.by_part
        }
        return RunHyperparameters(self.default.max_grad_norm, by_piece)

    def learning_rates(self, step: int) -> dict[str, float]:
        """Learning rates of the update after `step` updates, by the names under which they are reported.

        `learning_rate` is the learning rate of parts without settings of their own; a part with another learning rate
        in this run has `learning_rate/<part>`.
        """
        schedules = {"learning_rate": self.default} | {
            f"learning_rate/{part}": config
            for part, config in self.by_part.items()
            if self._rate_settings(config) != self._rate_settings(self.default)
        }
        return {
            name: float(np.asarray(learning_rate(make_hyperparameters(config, self.steps), step)))
            for name, config in schedules.items()
        }

    def _rate_settings(self, config: OptimizerConfig) -> tuple[Any, ...]:
        return config.learning_rate, config.resolve_warmup(self.steps), config.schedule


def make_part_optimizers(
    config: OptimizerConfig, graph: ModuleGraph, trained_parts: frozenset[str], steps: int
) -> PartOptimizers:
    """Makes the optimizers of the parts that train; warns of settings for a part that is frozen.

    Raises:
        UserError: Settings are for no part, or two settings for one part.
    """
    settings = {}
    for name, part_settings in config.parts:
        for part in find_parts(graph, name, "OptimizerConfig.parts"):
            if part in settings:
                raise UserError(f"OptimizerConfig.parts sets {part} twice; name it once")
            settings[part] = config.for_part(part_settings)
            if part not in trained_parts:
                _LOG.warning("OptimizerConfig.parts has settings for %s, which is frozen (TrainConfig.trainable)", part)
    default = dataclasses.replace(config, parts=())
    return PartOptimizers(default, {part: settings.get(part, default) for part in sorted(trained_parts)}, steps)
