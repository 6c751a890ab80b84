"""The optimizer: an algorithm, a learning rate with its schedule, weight decay, clipping, settings of trainable parts.

`mmjax.training.engine.optimizers.layer_optimizer` makes optax transformations of these configurations.
"""

import dataclasses
from typing import Literal

from configs.common.checks import require_types
from configs.common.errors import UserError
from configs.common.short_repr import short_repr


def _require_range(config: object, low: float, high: float, *names: str) -> None:
    """Raises UserError, naming the field, if one of these fields is set and not in [low, high)."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not low <= value < high:
            bound = f"in [{low:g}, {high:g})" if high < float("inf") else f"at least {low:g}"
            raise UserError(f"{type(config).__name__}.{name} is {value}; it must be {bound}")


def _require_rates(config: "OptimizerConfig | PartOptimizer") -> None:
    if config.learning_rate is not None and config.learning_rate <= 0:
        raise UserError(f"{type(config).__name__}.learning_rate is {config.learning_rate}; it must be above 0")
    _require_range(config, 0, float("inf"), "weight_decay", "warmup_steps")


# ------------------------------------------------------------------ algorithms

MomentDtype = Literal["float32", "bfloat16"]
"""Type in which moments are stored. Updates compute in float32; bfloat16 is rounded stochastically."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101); with `OptimizerConfig.weight_decay` 0, Adam.

    Attributes:
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        moment_dtype: Type in which both moments are stored.
    """

    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    moment_dtype: MomentDtype = "float32"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        _require_range(self, 0, 1, "beta1", "beta2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lion:
    """The sign of an interpolated momentum (arXiv 2302.06675).

    The paper advises a learning rate 3 to 10 times lower than AdamW's, and a weight decay higher by as much.

    Attributes:
        beta1: Weight of the momentum against the gradient in the update.
        beta2: Decay of the momentum.
        moment_dtype: Type in which the momentum is stored.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    moment_dtype: MomentDtype = "float32"

    def __post_init__(self) -> None:
        require_types(self)
        _require_range(self, 0, 1, "beta1", "beta2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with momentum.

    Attributes:
        momentum: Decay of the sum of gradients; 0 for none.
        nesterov: Whether the update looks one step ahead (Nesterov's accelerated gradient).
        moment_dtype: Type in which the sum of gradients is stored.
    """

    momentum: float = 0.9
    nesterov: bool = False
    moment_dtype: MomentDtype = "float32"

    def __post_init__(self) -> None:
        require_types(self)
        _require_range(self, 0, 1, "momentum")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor:
    """Adam without momentum, its second moment of large matrices factored into rows and columns (arXiv 1804.04235).

    Attributes:
        decay_exponent: The second moment of step t decays by 1 - t^-decay_exponent (section 7.2).
        clipping_threshold: Root mean square of a parameter's update above which it is scaled down (section 6).
        relative_step: Whether updates are multiplied by the root mean square of their parameter (section 8).
    """

    decay_exponent: float = 0.8
    clipping_threshold: float = 1.0
    relative_step: bool = True

    def __post_init__(self) -> None:
        require_types(self)
        _require_range(self, 0, 1, "decay_exponent")
        if self.clipping_threshold <= 0:
            raise UserError(f"Adafactor.clipping_threshold is {self.clipping_threshold}; it must be above 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Muon:
    """Momentum, orthogonalized for each weight matrix; AdamW for vectors and lookup tables.

    Updates have the root mean square that AdamW's have (arXiv 2502.16982, section 2.2), so that a learning rate and a
    weight decay for AdamW serve for both.

    Attributes:
        momentum: Decay of the momentum, with Nesterov's look-ahead.
        iterations: Newton-Schulz iterations of the orthogonalization.
        beta1: Decay of the first moment of vectors and tables.
        beta2: Decay of their second moment.
        epsilon: Added to the root of their second moment, and to the norm of a matrix.
        moment_dtype: Type in which the momentum and the moments are stored.
    """

    momentum: float = 0.95
    iterations: int = 5
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    moment_dtype: MomentDtype = "float32"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        _require_range(self, 0, 1, "momentum", "beta1", "beta2")
        _require_range(self, 1, float("inf"), "iterations")


Algorithm = AdamW | Lion | SGD | Adafactor | Muon


def moment_dtype(algorithm: Algorithm) -> MomentDtype:
    """Type in which an algorithm stores its moments; of Adafactor, whose factored ones are small, always float32."""
    return "float32" if isinstance(algorithm, Adafactor) else algorithm.moment_dtype


def with_moment_dtype(algorithm: Algorithm, dtype: MomentDtype) -> Algorithm:
    """The algorithm with moments of another type; Adafactor as it is."""
    return algorithm if isinstance(algorithm, Adafactor) else dataclasses.replace(algorithm, moment_dtype=dtype)


# ------------------------------------------------------------------ schedules after the warm-up


@dataclasses.dataclass(frozen=True)
class ConstantRate:
    """The peak learning rate until the end."""


@dataclasses.dataclass(frozen=True)
class CosineDecay:
    """Half a cosine, from the peak to `final_fraction` of it at the last step."""

    final_fraction: float = 0.05

    def __post_init__(self) -> None:
        require_types(self)
        _require_range(self, 0, 1, "final_fraction")


@dataclasses.dataclass(frozen=True)
class LinearDecay:
    """A straight line, from the peak to `final_fraction` of it at the last step."""

    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        require_types(self)
        _require_range(self, 0, 1, "final_fraction")


@dataclasses.dataclass(frozen=True)
class InverseSquareRootDecay:
    """peak / sqrt(1 + t / timescale), t steps after the warm-up (arXiv 2106.04560, section 3.5)."""

    timescale: float = 10_000.0

    def __post_init__(self) -> None:
        require_types(self)
        if self.timescale <= 0:
            raise UserError(f"InverseSquareRootDecay.timescale is {self.timescale}; it must be above 0")


RateSchedule = ConstantRate | CosineDecay | LinearDecay | InverseSquareRootDecay


# ------------------------------------------------------------------ the optimizer

StateMemory = Literal["device", "host"]
"""The memory in which master weights and the optimizer's state lie."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartOptimizer:
    """The settings of one trainable part; a field that is None takes its value from the `OptimizerConfig`."""

    learning_rate: float | None = None
    weight_decay: float | None = None
    warmup_steps: int | None = None
    schedule: RateSchedule | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        _require_rates(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """An algorithm and its settings, for the whole model and for single trainable parts.

    Attributes:
        algorithm: The algorithm of all parts.
        learning_rate: Peak learning rate, after the warm-up.
        weight_decay: Decoupled weight decay of parameters with two or more dimensions that are no biases, with any
            algorithm: a step subtracts learning rate · weight decay · parameter.
        warmup_steps: Steps of linear warm-up from 0, fewer than the run has; None for `warmup_fraction` of the run.
        warmup_fraction: Share of a run's steps that are warm-up, rounded, if `warmup_steps` is None.
        schedule: The learning rate after the warm-up.
        selection_bias_rate: Added by a step to the bias by which an expert with less than its share of the tokens is
            chosen, and subtracts for one with more (`RouterConfig.selection_bias`); 0 leaves these biases as they are.
        max_grad_norm: Global norm over the whole model above which gradients are scaled down; 0 turns clipping off.
        state_memory: Where master weights and moments lie between their uses: on the device, or in the pinned memory of
            its host, from which a step reads every layer's for the compute weights and for the update.
        parts: Settings of trainable parts, by the names that `TrainConfig.trainable` takes: pairs (name, settings).
    """

    algorithm: Algorithm = AdamW()
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup_steps: int | None = None
    warmup_fraction: float = 0.1
    schedule: RateSchedule = CosineDecay()
    selection_bias_rate: float = 1e-3
    max_grad_norm: float = 1.0
    state_memory: StateMemory = "device"
    parts: tuple[tuple[str, PartOptimizer], ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        _require_rates(self)
        _require_range(self, 0, float("inf"), "max_grad_norm", "selection_bias_rate")
        _require_range(self, 0, 1, "warmup_fraction")

    def for_part(self, settings: PartOptimizer) -> "OptimizerConfig":
        """The optimizer of a trainable part that has settings of its own."""
        values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
        return dataclasses.replace(
            self, parts=(), **{name: value for name, value in values.items() if value is not None}
        )

    def resolve_warmup(self, steps: int) -> int:
        """Steps of warm-up in a run of so many steps; raises UserError if the run has no step after them."""
        if self.warmup_steps is None:
            return min(round(self.warmup_fraction * steps), steps - 1)
        if self.warmup_steps >= steps:
            raise UserError(
                f"the warm-up (OptimizerConfig.warmup_steps = {self.warmup_steps}) is as long as the run "
                f"(TrainConfig.steps = {steps}), which would never reach its learning rate: set warmup_steps below "
                f"{steps}, or to None for a share of the run (warmup_fraction = {self.warmup_fraction:g})"
            )
        return self.warmup_steps

    def check_warmup(self, steps: int) -> None:
        """Raises UserError if the warm-up of the model, or of a trainable part, is at least as long as the run."""
        for config in (self, *(self.for_part(settings) for _, settings in self.parts)):
            config.resolve_warmup(steps)
