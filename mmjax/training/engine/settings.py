"""Options of an engine other than the model and the plan. This file does not import JAX, so configurations can.

`TrainConfig.engine_settings` makes them.
"""

import dataclasses

from configs.common.short_repr import short_repr
from configs.optimizer import OptimizerConfig
from data.data_config import QuadraticCostWeights


@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """Options of an engine other than the model and the plan.

    Attributes:
        optimizer: The optimizer, its settings of parts, and gradient clipping.
        steps: Steps of the run, which are the steps of the learning-rate schedule.
        seed: Seed of the initial values and of all randomness in the steps.
        trainable: Parts that train, by name, or `all`, or `projectors`.
        transport: Transport of hops: `device_put`, `ppermute`, or `auto` (`sharding.runtime.hops`).
        quadratic_cost_weights: Weight of the quadratic cost of items that are dealt over rows of their own, by field
            (`DataConfig.quadratic_cost_weights`).
    """

    optimizer: OptimizerConfig = OptimizerConfig()
    steps: int = 1000
    seed: int = 0
    trainable: tuple[str, ...] = ("all",)
    transport: str = "auto"
    quadratic_cost_weights: QuadraticCostWeights = ()

    __repr__ = short_repr

    @property
    def of_programs(self) -> "EngineSettings":
        """The settings on which compiled programs depend; settings that they take as arguments have their defaults."""
        optimizer = OptimizerConfig(algorithm=self.optimizer.algorithm, state_memory=self.optimizer.state_memory)
        defaults = EngineSettings()
        return dataclasses.replace(self, optimizer=optimizer, steps=defaults.steps, seed=defaults.seed)
