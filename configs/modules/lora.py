"""Low-rank adapters (LoRA, arXiv 2106.09685): small trainable matrices added to the frozen weights of a module.

`ModelConfig.lora` lists the adapters of a model.
"""

import dataclasses

from configs.common.checks import require_positive, require_types
from configs.common.short_repr import short_repr

TARGETS = ("query", "key", "value", "output", "gate", "up", "down")


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Adapters of a module. They are a trainable part of their own, `<part>_lora`, that trains or is frozen by name.

    Attributes:
        part: The encoder, backbone or generator whose transformer blocks are adapted.
        rank: Rank of every adapter.
        scale: Factor of the adapters' outputs: alpha / rank of the paper.
        targets: The projections of attention (query, key, value, output) and of feed-forward layers (gate, up, down)
            that have an adapter; projections that a block lacks are ignored.
    """

    part: str = "backbone"
    rank: int = 8
    scale: float = 2.0
    targets: tuple[str, ...] = TARGETS

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "rank")
        unknown = [name for name in self.targets if name not in TARGETS]
        if unknown or not self.targets:
            named = ", ".join(unknown) or "nothing"
            raise ValueError(f"LoraConfig.targets names {named}; choose from {', '.join(TARGETS)}")

    @property
    def name(self) -> str:
        """Name of the trainable part that the adapters are."""
        return f"{self.part}_lora"
