"""What training does beside the model and the plan, and which parts of the model it changes."""

import dataclasses

from configs.architectures import ModelConfig
from mmjax.training.optimizer import OptimizerConfig
from sharding import trainable as trainable_parts
from sharding.specs import module_graph


@dataclasses.dataclass(frozen=True)
class Settings:
    """What training does beside the model and the plan.

    Attributes:
        optimizer: AdamW and clipping.
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


def trained_parts(config: ModelConfig, trainable: tuple[str, ...]) -> frozenset[str]:
    """The parts that train; raises UserError for a name that is no part."""
    return trainable_parts.trained_parts(module_graph(config), trainable)
