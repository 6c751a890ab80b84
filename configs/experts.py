"""Mixtures of experts: every token passes through a few of many feed-forward layers."""

import dataclasses

from configs.checks import require_positive, require_types


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Gated feed-forward layers chosen by a router (Mixtral, arXiv 2401.04088; Qwen2-MoE, arXiv 2407.10671).

    Attributes:
        count: Number of experts.
        top_k: Number of experts that a token passes through, those with the largest probabilities.
        ffn: Feed-forward width f of an expert.
        shared_ffn: Width of an expert that every token passes through, with a sigmoid gate (Qwen2-MoE); 0 for none.
        normalise: Whether the probabilities of the chosen experts are divided by their sum (Mixtral does).
        balance_weight: Weight of the load-balancing loss, a mean over layers, in the model's loss.
    """

    count: int = 8
    top_k: int = 2
    ffn: int = 256
    shared_ffn: int = 0
    normalise: bool = True
    balance_weight: float = 0.01

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "count", "top_k", "ffn")
        if self.top_k > self.count:
            raise ValueError(f"ExpertsConfig.top_k = {self.top_k} is more than count = {self.count}")
        if self.shared_ffn < 0 or self.balance_weight < 0:
            raise ValueError(
                f"ExpertsConfig: shared_ffn is {self.shared_ffn} and balance_weight {self.balance_weight}; "
                "neither may be negative"
            )
