"""Into how many pieces the collective of a matmul is divided, and on how many rings they are sent.

A piece is what one permute carries while one matmul runs. Of a rank's shard of the positions, `chunks` pieces follow
each other on every ring; two rings run in opposite directions, each with half of the shard.
"""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class CollectiveTiling:
    """How a collective is divided.

    Attributes:
        chunks: Pieces of a rank's shard on each ring.
        rings: 1 or 2.
    """

    chunks: int = 1
    rings: int = 1

    def __post_init__(self) -> None:
        if self.chunks < 1 or self.rings not in (1, 2):
            raise ValueError(
                f"CollectiveTiling has {self.chunks} chunks on {self.rings} rings; give at least one, on 1 or 2 rings"
            )

    @property
    def parts(self) -> int:
        """Number of pieces of a rank's shard."""
        return self.chunks * self.rings


@dataclasses.dataclass(frozen=True)
class MatmulShape:
    """The matmul of one step of the ring.

    Attributes:
        rows: Positions of a rank's shard times all leading dimensions.
        inner, columns: The weight's shape on this rank.
        ranks: Ranks of the ring.
        shard_positions: Positions of a shard in one row of the batch, which the number of pieces must divide.
    """

    rows: int
    inner: int
    columns: int
    ranks: int
    shard_positions: int


MEASURED_TILINGS: dict[str, tuple[tuple[MatmulShape, CollectiveTiling], ...]] = {}
"""By device kind, the fastest tilings that `python -m benchmarks.collective_matmul` measured; none so far."""

TILE = 128
"""Rows and columns of an output tile of a large matmul on a GPU's matrix units."""
PROCESSORS = 132
"""Tiles that a Hopper GPU computes at once (NVIDIA H100 SXM: 132 streaming multiprocessors)."""
MAX_CHUNKS = 4
MAX_SHAPE_DISTANCE = 2.0
"""A measured tiling is used for shapes whose sizes differ by at most this factor."""


def choose_tiling(shape: MatmulShape, device_kind: str) -> CollectiveTiling:
    """The tiling measured on such a device for the nearest shape with as many ranks, else whole shards on one ring."""
    candidates = [
        (shape_distance(shape, measured), tiling)
        for measured, tiling in MEASURED_TILINGS.get(device_kind, ())
        if tiling_fits(shape, tiling)
    ]
    near = [(distance, tiling) for distance, tiling in candidates if distance <= MAX_SHAPE_DISTANCE]
    return min(near, key=lambda pair: pair[0])[1] if near else CollectiveTiling()


def shape_distance(shape: MatmulShape, other: MatmulShape) -> float:
    """The largest ratio between the sizes of two matmuls; infinite for different numbers of ranks."""
    if shape.ranks != other.ranks:
        return float("inf")
    pairs = ((shape.rows, other.rows), (shape.inner, other.inner), (shape.columns, other.columns))
    return max(max(a, b) / min(a, b) for a, b in pairs)


def tiling_fits(shape: MatmulShape, tiling: CollectiveTiling) -> bool:
    """Whether the number of pieces divides a shard's positions."""
    return shape.shard_positions % tiling.parts == 0


def all_reduce_chunks(shape: MatmulShape) -> int:
    """Chunks of a matmul that is followed by an all-reduce: as many as leave each a matmul that fills the device.

    The all-reduce of every chunk but the last runs while the next chunk is computed, so more chunks expose less of it,
    until they starve the matrix units.
    """
    tiles = -(-shape.rows // TILE) * -(-shape.columns // TILE)
    max_chunks = max(1, min(MAX_CHUNKS, tiles // PROCESSORS))
    return max(chunks for chunks in range(1, max_chunks + 1) if shape.shard_positions % chunks == 0)


def device_kind() -> str:
    """The kind of the devices that programs are compiled for."""
    return jax.devices()[0].device_kind
