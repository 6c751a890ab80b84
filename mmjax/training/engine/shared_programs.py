"""Engines of one process that share their compiled programs, so that a sweep over hyperparameters compiles once.

`TrainingRun` asks it for its engine.
"""

import functools

import jax

from configs.architectures import ModelConfig
from data.packing.batch_spec import ArraySpec, BatchSpec
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from sharding.plans.plan import Plan

KEPT = 4
"""Number of engines that keep their programs for later ones: the most recently used engines."""

_Shapes = tuple[tuple[str, tuple[tuple[str, ArraySpec], ...]], ...]


def engine_with_shared_programs(
    config: ModelConfig, plan: Plan, batch_spec: BatchSpec, settings: EngineSettings
) -> Engine:
    """Returns an engine on all devices, with an earlier engine's programs if they differ in program arguments only.

    These arguments are the learning rates with their warm-up and schedules, the weight decay, the clipping norm,
    the number of steps and the seed (`EngineSettings.of_programs`). Raises what `Engine` raises.
    """
    shapes = tuple(
        (module, tuple((name, ArraySpec(array.shape, array.dtype)) for name, array in arrays.items()))
        for module, arrays in batch_spec.items()
    )
    devices = tuple(jax.devices())
    return _engine_of_programs(config, plan, shapes, settings.of_programs, devices).with_settings(settings)


@functools.lru_cache(maxsize=KEPT)
def _engine_of_programs(
    config: ModelConfig, plan: Plan, shapes: _Shapes, settings: EngineSettings, devices: tuple[jax.Device, ...]
) -> Engine:
    """The engine whose programs others share; it runs no step itself."""
    batch_spec = {module: dict(arrays) for module, arrays in shapes}
    return Engine(config, plan, batch_spec, settings, devices)
