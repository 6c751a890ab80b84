"""The optimizers of parts: which settings each part that trains has, and the learning rates that a run reports."""

import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import optax

from configs.errors import UserError
from configs.optimizer import OptimizerConfig
from mmjax.models.structure.module import Module
from mmjax.training.engine.stage_layouts import StageLayout, piece_key
from mmjax.training.engine.transformations import learning_rate_schedule, make_transformation
from sharding.plans.trained_parts import find_parts
from sharding.specs.modules import ModuleGraph

_LOG = logging.getLogger(__name__)

LayerOptimizers = Mapping[str, optax.GradientTransformation]
"""The optimizer of one layer, by `module/piece` or by parameter key of a stage; layers of a stack have equal ones."""


def stage_optimizers(optimizers: LayerOptimizers, layout: StageLayout) -> LayerOptimizers:
    """The optimizers of a stage by key of its parameters, from those of all pieces by `module/piece`."""
    keys = {run.parameter_key: piece_key(run.parameter_key) for run in layout.piece_runs}
    return {key: optimizers[piece] for key, piece in keys.items() if piece in optimizers}


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

    def for_layers(self, modules: tuple[Module, ...]) -> LayerOptimizers:
        """The optimizers of the layers of all parts that train; parts with equal settings share one."""
        make = functools.cache(functools.partial(make_transformation, steps=self.steps))
        return {
            f"{module.name}/{piece.name}": make(self.by_part[piece.part])
            for module in modules
            for piece in module.pieces
            if piece.part in self.by_part
        }

    def learning_rates(self, step: int) -> dict[str, float]:
        """Learning rates of the update after `step` updates, by the names under which they are reported.

        `learning_rate` is that of parts without settings of their own; a part whose learning rate is another one
        during this run has `learning_rate/<part>`.
        """
        schedules = {"learning_rate": self.default} | {
            f"learning_rate/{part}": config
            for part, config in self.by_part.items()
            if self._rate_settings(config) != self._rate_settings(self.default)
        }
        return {
            name: float(np.asarray(learning_rate_schedule(config, self.steps)(step)))
            for name, config in schedules.items()
        }

    def _rate_settings(self, config: OptimizerConfig) -> tuple[Any, ...]:
        return config.learning_rate, config.resolve_warmup(self.steps), config.schedule


def make_part_optimizers(
    config: OptimizerConfig, graph: ModuleGraph, trained_parts: frozenset[str], steps: int
) -> PartOptimizers:
    """The optimizers of the parts that train; warns of settings for a part that is frozen.

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
