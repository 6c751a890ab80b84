"""Low-rank adapters: parts of a model that stay frozen learn by small matrices beside theirs (arXiv 2106.09685)."""

import dataclasses

from configs.checks import require_positive

TARGETS = ("query", "key", "value", "output", "gate", "up", "down")


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Adapters of a part of the model. They are a part of their own, `<part>_lora`, that trains or is frozen by name.

    Attributes:
        part: The encoder, backbone or generator whose transformer blocks are adapted.
        rank: Of every adapter.
        scale: What adapters' outputs are multiplied by: alpha / rank of the paper.
        targets: Which projections of attention (query, key, value, output) and of feed-forward layers (gate, up, down)
            have one; those that a block lacks are passed over.
    """

    part: str = "backbone"
    rank: int = 8
    scale: float = 2.0
    targets: tuple[str, ...] = TARGETS

    def __post_init__(self) -> None:
        require_positive(self, "rank")
        unknown = [name for name in self.targets if name not in TARGETS]
        if unknown or not self.targets:
            named = ", ".join(unknown) or "nothing"
            raise ValueError(f"LoraConfig.targets names {named}; choose from {', '.join(TARGETS)}")

    @property
    def name(self) -> str:
        """Of the part that the adapters are."""
        return f"{self.part}_lora"
