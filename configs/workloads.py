"""Training workloads described without data: a planner's input where no data set is at hand."""

import dataclasses

from configs.architectures import ModelConfig
from configs.common.checks import require_types
from configs.common.short_repr import short_repr
from configs.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class Lognormal:
    """A log-normal size, clipped: `median * exp(sigma * normal)`.

    Attributes:
        median: Half of all values are smaller.
        sigma: Standard deviation of the logarithm.
        minimum: Lower bound.
        maximum: Upper bound.
    """

    median: float
    sigma: float
    minimum: float = 1.0
    maximum: float = float("inf")

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if not 0 < self.minimum <= self.median <= self.maximum or self.sigma < 0:
            raise ValueError(
                f"Lognormal: need 0 < minimum <= median <= maximum and sigma >= 0, not {self.minimum}, {self.median}, "
                f"{self.maximum} and {self.sigma}"
            )


@dataclasses.dataclass(frozen=True)
class DescribedItems:
    """The items that samples of a kind have for an encoder that reads neither images nor audio.

    Attributes:
        field: Name of the encoder's inputs (`EncoderConfig.field`).
        counts: Probabilities of 0, 1, 2... items.
        positions: Positions of the encoder that an item takes, rounded down to whole backbone tokens.
    """

    field: str
    counts: tuple[float, ...]
    positions: Lognormal

    def __post_init__(self) -> None:
        require_types(self)
        _require_probabilities("DescribedItems.counts", self.counts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleKind:
    """One kind of sample.

    Attributes:
        text_tokens: Text tokens of a sample, over all its questions and answers.
        image_counts: Probabilities of 0, 1, 2... images.
        image_side: Side of an image in pixels, as the encoder gets it.
        tile_side: Side of the tiles into which an image is cut, with a thumbnail if there is more than one; 0 for
            native resolution.
        max_tiles: The most tiles of an image, without its thumbnail.
        generated_share: Share of the images that generators learn to generate; encoders read all of them.
        clip_counts: Probabilities of 0, 1, 2... audio clips.
        clip_seconds: Length of a clip in seconds.
        items: Inputs of other encoders.
    """

    text_tokens: Lognormal
    image_counts: tuple[float, ...] = (1.0,)
    image_side: Lognormal = Lognormal(512, 0.0)
    tile_side: int = 0
    max_tiles: int = 1
    generated_share: float = 0.0
    clip_counts: tuple[float, ...] = (1.0,)
    clip_seconds: Lognormal = Lognormal(10, 0.0)
    items: tuple[DescribedItems, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        _require_probabilities("SampleKind.image_counts", self.image_counts)
        _require_probabilities("SampleKind.clip_counts", self.clip_counts)
        fields = [items.field for items in self.items]
        if len(set(fields)) < len(fields):
            raise ValueError(f"SampleKind.items describes {', '.join(fields)}; describe each field once")
        if not 0 <= self.generated_share <= 1:
            raise ValueError(f"SampleKind.generated_share is {self.generated_share}; it is a share, from 0 to 1")


def _require_probabilities(name: str, probabilities: tuple[float, ...]) -> None:
    if min(probabilities, default=-1.0) < 0 or abs(sum(probabilities) - 1) > 1e-6:
        raise ValueError(f"{name} = {probabilities}; probabilities of 0, 1, 2... must add up to 1")


@dataclasses.dataclass(frozen=True)
class SyntheticData:
    """Rows filled with samples in random order.

    Attributes:
        row_tokens: Backbone tokens of a row.
        kinds: Kinds of samples and their shares.
        one_document: Whether the samples of a row are one document, so that attention spans all of them.
        isf_threshold: Backbone tokens from which the grouping `isf` accepts a row, OmniBal's Q'; 0 for the share that
            `DataConfig.isf_thresholds` describes.
    """

    row_tokens: int
    kinds: tuple[tuple[SampleKind, float], ...]
    one_document: bool = False
    isf_threshold: int = 0

    def __post_init__(self) -> None:
        require_types(self)
        if self.row_tokens < 1 or not self.kinds or min(share for _, share in self.kinds) <= 0:
            raise ValueError("SyntheticData needs row_tokens of at least 1 and kinds with positive shares")
        if not 0 <= self.isf_threshold <= self.row_tokens:
            raise ValueError(
                f"SyntheticData.isf_threshold accepts rows from {self.isf_threshold} tokens, and a row holds "
                f"{self.row_tokens}; give 1 to {self.row_tokens}, or 0 for the default"
            )


@dataclasses.dataclass(frozen=True)
class Workload:
    """A training step to plan.

    Attributes:
        model: The model.
        data: Description of its rows.
        rows: Rows of the global batch.
        trainable: Names of the trainable parts that train, or `all`, or `projectors`.
        optimizer: The optimizer, whose state takes memory.
    """

    model: ModelConfig
    data: SyntheticData
    rows: int
    trainable: tuple[str, ...] = ("all",)
    optimizer: OptimizerConfig = OptimizerConfig()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"Workload.rows is {self.rows}; it must be at least 1")
