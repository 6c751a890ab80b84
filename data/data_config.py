"""The data configuration: how samples become global batches, and the capacity of a row.

`DataConfig` is bound in gin files; `data.packing.pipeline` makes batches by it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from configs.common.checks import require_types
from configs.common.short_repr import short_repr
from data.errors import DataError

_NAMED_CAPACITIES = ("patches", "frames")  # of encoder inputs; others are in DataConfig.capacities


def capacity_setting(name: str) -> str:
    """The setting of a row's capacity of a quantity (`RowCapacity.names`), in messages."""
    named = name in (*_NAMED_CAPACITIES, "tokens", "images")
    return f"DataConfig.{name}" if named else f"DataConfig.capacities of {name}"


GroupingPolicyName = Literal["first_fit", "isf", "random", "sorted", "device_group", "post_balanced"]
"""Names of the policies in `data.packing.grouping.grouping_policies`."""

OversizedAction = Literal["skip", "error"]

IsfThresholds = tuple[tuple[str, int], ...]
"""(quantity, units) pairs (`DataConfig.isf_thresholds`)."""

QuadraticCostWeights = tuple[tuple[str, float], ...]
"""(encoder field, weight) pairs (`DataConfig.quadratic_cost_weights`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowCapacity:
    """The most that one row holds of each quantity.

    Attributes:
        tokens: Backbone tokens s.
        lengths: By encoder field, values of the encoder's inputs: patches p, mel frames f, ...
        images: Images g to generate; 0 without a generator.
        samples: Samples, whatever their size.
    """

    tokens: int
    lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
    images: int = 0
    samples: int

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name, size in {**self.units, "samples": self.samples}.items():
            minimum = 1 if name in ("tokens", "samples") else 0
            if size < minimum:
                raise DataError(f"the capacity of a row is {size} {name}; it must be at least {minimum}")

    @property
    def units(self) -> dict[str, int]:
        """The capacity of every quantity but samples, by name: `tokens`, the encoder fields, `images`."""
        return {"tokens": self.tokens, **self.lengths, "images": self.images}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the quantities of `units`."""
        return tuple(self.units)

    @property
    def vector(self) -> Float[np.ndarray, " k"]:
        """Capacities of the quantities of `names`."""
        return np.array([*self.units.values()], float)

    def excess_reason(self, sizes: Mapping[str, int]) -> str | None:
        """Why a sample does not fit into a row and what would help; None if it fits.

        Args:
            sizes: Units of the sample, by `names`; a quantity that is missing is 0.
        """
        excesses = [
            f"{sizes[name]} {name} where a row holds {size}"
            for name, size in self.units.items()
            if sizes.get(name, 0) > size
        ]
        return f"{' and '.join(excesses)}; raise the row's capacity" if excesses else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The settings by which samples become global batches.

    Attributes:
        rows: Rows n of a global batch.
        tokens, patches, frames, images, samples: Capacity of a row (`RowCapacity`): backbone tokens, patches of images,
            mel frames of audio clips, images to generate, samples.
        capacities: (field, capacity) pairs of the inputs of encoders of other kinds (`EncoderConfig.field`).
        quadratic_cost_weights: (encoder field, w) pairs, for encoders with rows of their own in the plan
            (`UnitPlan.phase_rows`): items are dealt so that rows have even costs, where an item of l patches or frames
            costs l + w l^2. A field without a weight has a linear cost.
        mixture: (kind, weight) pairs: the proportions in which samples of each kind are drawn. Empty for all kinds of
            the data set, each in proportion to its number of samples.
        seed: Seed of the order of the samples.
        grouping: Policy that decides which samples share a row (`GroupingPolicyName`).
        isf_thresholds: (quantity, units) pairs: Q' of the grouping `isf`, which accepts a row that holds so many units
            of any quantity (`RowCapacity.names`). OmniBal's are 128 below the capacity in tokens, and the whole
            capacity of patches. A quantity without one has 95% of its capacity.
        window: Samples of the stream that are grouped at a time: more of them where these do not fill four steps, fewer
            where the data set has fewer.
        language_weight: Weight of the language loss in the total loss.
        generator_weight: Weight of the generator's loss in the total loss.
        max_refused_share: Largest fraction of the samples of a kind that may be unreadable. They are skipped; more
            of them are an error.
        oversized: What happens to a sample that fits into no row (`OversizedAction`): `skip` counts and logs
            it, `error` ends the run.
        workers: Worker processes that plan and decode; 0 for a thread of this process, the fastest for small images.
        threads: Decoding threads of each worker; 0 to decode sequentially.
        prefetch: Batches that each worker prepares ahead; 0, without workers, prepares each batch on request.
    """

    rows: int = 8
    tokens: int = 256
    patches: int = 128
    frames: int = 0
    images: int = 2
    samples: int = 16
    capacities: tuple[tuple[str, int], ...] = ()
    quadratic_cost_weights: QuadraticCostWeights = ()
    mixture: tuple[tuple[str, float], ...] = ()
    seed: int = 0
    grouping: str = "first_fit"
    isf_thresholds: IsfThresholds = ()
    window: int = 1024
    language_weight: float = 1.0
    generator_weight: float = 1.0
    max_refused_share: float = 0.01
    oversized: str = "skip"
    workers: int = 0
    threads: int = 0
    prefetch: int = 2

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        minima = {"rows": 1, "window": 1, "seed": 0, "workers": 0, "threads": 0, "prefetch": 0}
        for name, minimum in minima.items():
            if getattr(self, name) < minimum:
                raise DataError(f"DataConfig.{name} is {getattr(self, name)}; it must be at least {minimum}")
        for name in ("language_weight", "generator_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise DataError(f"DataConfig.{name} is {getattr(self, name)}; it must be finite and not negative")
        if not 0 <= self.max_refused_share < 1:
            raise DataError(f"DataConfig.max_refused_share is {self.max_refused_share}; it must be in [0, 1)")
        for name, choices in (("oversized", get_args(OversizedAction)), ("grouping", get_args(GroupingPolicyName))):
            if getattr(self, name) not in choices:
                raise DataError(f"DataConfig.{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        kinds = [kind for kind, _ in self.mixture]
        if len(set(kinds)) < len(kinds) or not all(0 < weight < float("inf") for _, weight in self.mixture):
            raise DataError(f"DataConfig.mixture is {self.mixture}; give each kind once, with a weight above zero")
        fields = [*_NAMED_CAPACITIES, "tokens", "images", "samples", *(field for field, _ in self.capacities)]
        if repeated := sorted({field for field in fields if fields.count(field) > 1}):
            raise DataError(f"DataConfig.capacities names {', '.join(repeated)}, which has a capacity; give each once")
        self._check_quadratic_cost_weights()
        _ = self.capacity  # checks itself
        self._check_isf_thresholds()

    def _check_isf_thresholds(self) -> None:
        units, named = self.capacity.units, [name for name, _ in self.isf_thresholds]
        if repeated := sorted({name for name in named if named.count(name) > 1}):
            raise DataError(
                f"DataConfig.isf_thresholds is {self.isf_thresholds}; it names {', '.join(repeated)} more than once; "
                "give each quantity once"
            )
        for name, threshold in self.isf_thresholds:
            given = f"DataConfig.isf_thresholds accepts rows from {threshold} {name}"
            if name not in units:
                raise DataError(f"{given}, which are no quantity of a row; choose from {', '.join(units)}")
            if not units[name]:
                raise DataError(
                    f"{given}, of which a row holds none; leave {name} out, or raise {capacity_setting(name)}"
                )
            if not 1 <= threshold <= units[name]:
                raise DataError(
                    f"{given}, and a row holds {units[name]} at most; give 1 to {units[name]}, or raise "
                    f"{capacity_setting(name)}"
                )

    def _check_quadratic_cost_weights(self) -> None:
        weighted = [field for field, _ in self.quadratic_cost_weights]
        if repeated := sorted({field for field in weighted if weighted.count(field) > 1}):
            raise DataError(
                f"DataConfig.quadratic_cost_weights is {self.quadratic_cost_weights}; it names {', '.join(repeated)} "
                "more than once; give each field once"
            )
        for field, weight in self.quadratic_cost_weights:
            if not 0 < weight < float("inf"):
                raise DataError(
                    f"DataConfig.quadratic_cost_weights gives {field} the weight {weight}; it must be finite and above "
                    "zero, or left out for a linear cost"
                )

    @property
    def capacity(self) -> RowCapacity:
        """Capacity of a row."""
        return RowCapacity(
            tokens=self.tokens, lengths=self.encoder_capacities, images=self.images, samples=self.samples
        )

    @property
    def encoder_capacities(self) -> dict[str, int]:
        """By encoder field, the capacity of the encoder's inputs."""
        return {name: getattr(self, name) for name in _NAMED_CAPACITIES} | dict(self.capacities)

    def with_encoder_capacities(self, capacities: Mapping[str, int]) -> "DataConfig":
        """The configuration with other capacities of these fields."""
        changed = self.encoder_capacities | dict(capacities)
        named = {name: changed.pop(name) for name in _NAMED_CAPACITIES}
        return dataclasses.replace(self, **named, capacities=tuple(changed.items()))

    def shares(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Weight of every kind that is drawn.

        Args:
            counts: Number of samples of each kind, for a configuration without a mixture.
        """
        return dict(self.mixture) or {kind: float(count) for kind, count in counts.items()}
