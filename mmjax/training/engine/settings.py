"""What an engine is told beside the model and the plan."""

import dataclasses

from configs.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """What an engine is told beside the model and the plan.

    Attributes:
        optimizer: AdamW and gradient clipping.
        steps: Length of the learning-rate schedule.
        seed: Keys initial values and all randomness of the steps.
        trainable: Parts that train, by name, or `all`, or `projectors`.
        transport: How hops travel: `device_put`, `ppermute`, or `auto`.
    """

    optimizer: OptimizerConfig = OptimizerConfig()
    steps: int = 1000
    seed: int = 0
    trainable: tuple[str, ...] = ("all",)
    transport: str = "auto"
