"""The data configuration: how samples become global batches. Bound in gin files, checked here."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from data.errors import DataError

CAPACITY_FIELDS = ("tokens", "patches", "frames", "images")
"""Quantities of which a row has a capacity, in addition to the number of samples."""

GroupingPolicyName = Literal["first_fit", "isf", "random", "sorted", "device_group"]
"""Names of the policies in `data.packing.grouping.grouping_policies`."""

OversizedAction = Literal["skip", "error"]


@dataclasses.dataclass(frozen=True)
class RowCapacity:
    """The most that one row holds of each quantity.

    Attributes:
        tokens: Backbone tokens s.
        patches: Patches p of the vision encoder; 0 without one.
        images: Images g to generate; 0 without a generator.
        samples: Samples, whatever their size.
        frames: Mel frames f of the audio encoder; 0 without one.
    """

    tokens: int
    patches: int
    images: int
    samples: int
    frames: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            minimum = 1 if field.name in ("tokens", "samples") else 0
            if getattr(self, field.name) < minimum:
                raise DataError(
                    f"the capacity of a row is {getattr(self, field.name)} {field.name}; it must be at least {minimum}"
                )

    @property
    def vector(self) -> Float[np.ndarray, " 4"]:
        """The capacities in the order of `CAPACITY_FIELDS`."""
        return np.array([getattr(self, name) for name in CAPACITY_FIELDS], float)

    def excess_reason(self, sizes: Mapping[str, int]) -> str | None:
        """Why a sample does not fit into a row and what would help; None if it fits.

        Args:
            sizes: What the sample takes, by `CAPACITY_FIELDS`.
        """
        excesses = [
            f"{sizes[name]} {name} where a row holds {getattr(self, name)}"
            for name in CAPACITY_FIELDS
            if sizes[name] > getattr(self, name)
        ]
        return f"{' and '.join(excesses)}; raise the row's capacity" if excesses else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How samples become global batches.

    Attributes:
        rows: Rows n of a global batch.
        tokens, patches, frames, images, samples: Capacity of a row (`RowCapacity`).
        mixture: (kind, weight) pairs: the proportions in which samples of each kind are drawn. Empty for all kinds of
            the data set, each in proportion to its number of samples.
        seed: Seed of the order of the samples.
        grouping: Policy that decides which samples share a row (`GroupingPolicyName`).
        window: Samples of the stream that are grouped at a time.
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
    mixture: tuple[tuple[str, float], ...] = ()
    seed: int = 0
    grouping: str = "first_fit"
    window: int = 1024
    language_weight: float = 1.0
    generator_weight: float = 1.0
    max_refused_share: float = 0.01
    oversized: str = "skip"
    workers: int = 0
    threads: int = 0
    prefetch: int = 2

    def __post_init__(self) -> None:
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
        _ = self.capacity  # checks itself

    @property
    def capacity(self) -> RowCapacity:
        """Capacity of a row."""
        return RowCapacity(
            tokens=self.tokens, patches=self.patches, images=self.images, samples=self.samples, frames=self.frames
        )

    def shares(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Weight of every kind that is drawn.

        Args:
            counts: Number of samples of each kind, for a configuration without a mixture.
        """
        return dict(self.mixture) or {kind: float(count) for kind, count in counts.items()}
