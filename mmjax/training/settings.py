"""What training does beside the model and the plan, and which parts of the model it changes."""

import dataclasses

from configs.architectures import ModelConfig
from configs.errors import UserError
from mmjax.models.pieces import trainable_parts
from mmjax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class Settings:
    """What training does beside the model and the plan.

    Attributes:
        optimizer: AdamW and clipping.
        steps: Length of the learning-rate schedule.
        seed: Keys initial values and all randomness of the steps.
        trainable: Parts that train, by name (`trainable_parts`), or `all`, or `projectors`.
        transport: How hops travel: `device_put`, `ppermute`, or `auto`.
    """

    optimizer: OptimizerConfig = OptimizerConfig()
    steps: int = 1000
    seed: int = 0
    trainable: tuple[str, ...] = ("all",)
    transport: str = "auto"


def trained_parts(config: ModelConfig, trainable: tuple[str, ...]) -> frozenset[str]:
    """The parts that train; raises UserError for a name that is no part."""
    parts = trainable_parts(config)
    groups = {"all": parts, "projectors": tuple(part for part in parts if part.endswith("_projector"))}
    for name in trainable:
        if name not in groups and name not in parts:
            raise UserError(f"trainable names {name!r}; choose from {', '.join((*groups, *parts))}")
    return frozenset(part for name in trainable for part in groups.get(name, (name,)))
