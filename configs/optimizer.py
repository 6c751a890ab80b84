"""The settings of AdamW with warm-up and cosine decay; `mmjax.training.engine.optimizer` applies them."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (arXiv 1711.05101) and its schedule.

    Attributes:
        learning_rate: Peak learning rate, after the warm-up.
        warmup_steps: Steps of linear warm-up.
        final_learning_rate_fraction: Learning rate at the last step as a fraction of the peak, reached along a cosine.
        beta1: Decay of Adam's first moment.
        beta2: Decay of Adam's second moment.
        epsilon: Adam's epsilon.
        weight_decay: Decoupled weight decay of parameters with two or more dimensions.
        max_grad_norm: Global norm over all units above which gradients are scaled down; 0 turns clipping off.
    """

    learning_rate: float = 1e-3
    warmup_steps: int = 100
    final_learning_rate_fraction: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise ValueError(f"OptimizerConfig.learning_rate is {self.learning_rate}; it must be above 0")
        if self.warmup_steps < 0 or self.max_grad_norm < 0 or self.weight_decay < 0:
            raise ValueError("OptimizerConfig.warmup_steps, max_grad_norm and weight_decay must not be negative")
        for name in ("beta1", "beta2", "final_learning_rate_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"OptimizerConfig.{name} is {getattr(self, name)}; it must be in [0, 1]")
