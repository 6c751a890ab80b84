"""How samples become global batches; bound in gin files, checked here."""

import dataclasses
from collections.abc import Mapping

from data.errors import DataError
from data.groupings import GROUPINGS
from data.packing import Capacity

OVERSIZED = ("skip", "error")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """How samples become global batches.

    Attributes:
        rows: Rows n of a global batch.
        tokens, patches, frames, images, samples: What one row holds at most: backbone tokens, encoder patches, mel
            frames, generated images, samples.
        mixture: (kind, weight): in which proportion the samples of each kind come; empty for all kinds of the source,
            each by how many samples it has.
        seed: Order of the samples.
        grouping: Which samples share a row (`data.groupings`).
        window: Samples of the stream that are grouped at once.
        language_weight, generator_weight: What the losses count in their sum.
        max_refused_share: Share of the source's samples that may be unreadable; they are skipped, more are an error.
        oversized: `skip` counts and logs a sample that fits no row; `error` stops at it.
        workers: Processes that plan and decode; 0 for a thread of this one, which is fastest for small images.
        threads: Threads of each that decode at once; 0 for none.
        prefetch: Batches made ahead, by each of them; 0, without workers, makes each when it is asked for.
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
        at_least = {"rows": 1, "window": 1, "seed": 0, "workers": 0, "threads": 0, "prefetch": 0}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise DataError(f"DataConfig.{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("language_weight", "generator_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise DataError(f"DataConfig.{name} is {getattr(self, name)}; it must be zero or more, and finite")
        if not 0 <= self.max_refused_share < 1:
            raise DataError(f"DataConfig.max_refused_share is {self.max_refused_share}; it must lie in [0, 1)")
        for name, choices in (("oversized", OVERSIZED), ("grouping", tuple(GROUPINGS))):
            if getattr(self, name) not in choices:
                raise DataError(f"DataConfig.{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        kinds = [kind for kind, _ in self.mixture]
        if len(set(kinds)) < len(kinds) or not all(0 < weight < float("inf") for _, weight in self.mixture):
            raise DataError(f"DataConfig.mixture is {self.mixture}; give each kind once, with a weight above zero")
        self.capacity  # noqa: B018  (checks itself)

    @property
    def capacity(self) -> Capacity:
        """What one row holds at most."""
        return Capacity(self.tokens, self.patches, self.images, self.samples, self.frames)

    def shares(self, counts: Mapping[str, int]) -> dict[str, float]:
        """The weight of every kind that is wanted, given how many samples there are of each."""
        return dict(self.mixture) or {kind: float(count) for kind, count in counts.items()}
