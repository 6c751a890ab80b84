"""In how many parts the collective of a matmul travels, and by how many rings.

A part is what one permute carries while one matmul runs. Of a rank's share, `chunks` parts travel one behind another on
every ring; two rings go around in opposite directions, each with half of the share.
"""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class CollectiveTiling:
    """How a collective is cut.

    Attributes:
        chunks: Parts of a rank's share on each ring.
        rings: 1 or 2.
    """

    chunks: int = 1
    rings: int = 1

    def __post_init__(self) -> None:
        if self.chunks < 1 or self.rings not in (1, 2):
            raise ValueError(
                f"Tiling is {self.chunks} chunks on {self.rings} rings; give at least one, on 1 or 2 rings"
            )

    @property
    def parts(self) -> int:
        """Parts of a rank's share."""
        return self.chunks * self.rings


@dataclasses.dataclass(frozen=True)
class MatmulShape:
    """What a rank's matmul is like.

    Attributes:
        rows: Positions of the share that one step multiplies, of all leading dimensions together.
        inner, columns: The weight's shape on this rank.
        ranks: Around the ring.
        shared: Positions of a share in one row of the batch, which the parts must divide.
    """

    rows: int
    inner: int
    columns: int
    ranks: int
    share_positions: int


MEASURED_TILINGS: dict[str, tuple[tuple[MatmulShape, CollectiveTiling], ...]] = {}
"""By device kind, what `python -m benchmarks.collective_matmul` found quickest; empty until it ran on such a device."""

TILE = 128
"""Rows and columns of an output tile of a large matmul on a GPU's matrix units."""
PROCESSORS = 132
"""Tiles that a Hopper GPU computes at once (NVIDIA H100 SXM: 132 streaming multiprocessors)."""
MOST_CHUNKS = 4


def choose_tiling(work: MatmulShape, device_kind: str) -> CollectiveTiling:
    """What was measured on such a device for the nearest work of as many ranks, else `whole_shares`."""
    known = [
        (shape_distance(work, other), tiling)
        for other, tiling in MEASURED_TILINGS.get(device_kind, ())
        if tiling_fits(work, tiling)
    ]
    near = [(far, tiling) for far, tiling in known if far <= 2.0]
    return min(near, key=lambda pair: pair[0])[1] if near else CollectiveTiling()


def shape_distance(one: MatmulShape, other: MatmulShape) -> float:
    """The largest ratio between the sizes of two matmuls; infinite for other numbers of ranks."""
    if one.ranks != other.ranks:
        return float("inf")
    pairs = ((one.rows, other.rows), (one.inner, other.inner), (one.columns, other.columns))
    return max(max(a, b) / min(a, b) for a, b in pairs)


def tiling_fits(work: MatmulShape, tiling: CollectiveTiling) -> bool:
    """Whether the parts divide a share."""
    return work.share_positions % tiling.parts == 0


def all_reduce_chunks(work: MatmulShape) -> int:
    """Chunks of a matmul whose sum all ranks get whole: as many as leave each a matmul that fills the device.

    All but the last one's sum travels while the next one is computed, so more chunks expose less, until they starve the
    matrix units.
    """
    tiles = -(-work.rows // TILE) * -(-work.columns // TILE)
    most = max(1, min(MOST_CHUNKS, tiles // PROCESSORS))
    return max(chunks for chunks in range(1, most + 1) if work.share_positions % chunks == 0)


def device_kind() -> str:
    """The kind of the devices that programs are compiled for."""
    return jax.devices()[0].device_kind
