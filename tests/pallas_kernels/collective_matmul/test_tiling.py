"""How the collectives of matmuls are divided: measured tilings first, then the default."""

import dataclasses

import pytest

from pallas_kernels.collective_matmul import tiling
from pallas_kernels.collective_matmul.tiling import CollectiveTiling, MatmulShape, all_reduce_chunks, choose_tiling

SHAPE = MatmulShape(rows=2048, inner=8192, columns=3584, ranks=8, shard_positions=1024)


def test_the_tiling_measured_for_the_nearest_shape_is_chosen(monkeypatch):
    near, far = (dataclasses.replace(SHAPE, rows=rows) for rows in (3000, 1100))
    fewer = dataclasses.replace(SHAPE, ranks=4)
    table = {
        "a device": ((near, CollectiveTiling(2, 1)), (far, CollectiveTiling(4, 2)), (fewer, CollectiveTiling(1, 2)))
    }
    monkeypatch.setattr(tiling, "MEASURED_TILINGS", table)
    assert choose_tiling(SHAPE, "a device") == CollectiveTiling(2, 1)
    assert choose_tiling(dataclasses.replace(SHAPE, rows=1200), "a device") == CollectiveTiling(4, 2)
    assert choose_tiling(fewer, "a device") == CollectiveTiling(1, 2)


def test_shards_are_sent_whole_where_nothing_near_was_measured(monkeypatch):
    monkeypatch.setattr(tiling, "MEASURED_TILINGS", {"a device": ((SHAPE, CollectiveTiling(2, 1)),)})
    for shape in (
        dataclasses.replace(SHAPE, rows=8192),  # another size
        dataclasses.replace(SHAPE, ranks=2),
        dataclasses.replace(SHAPE, shard_positions=1023),  # which two chunks do not divide
    ):
        assert choose_tiling(shape, "a device") == CollectiveTiling()
    assert choose_tiling(SHAPE, "another device") == CollectiveTiling()


@pytest.mark.parametrize(
    ("rows", "columns", "shard_positions", "chunks"),
    [
        (8192, 8192, 4096, 4),  # 64 x 64 tiles: more than four times the processors
        (1024, 8192, 1024, 2),  # 512 tiles are three times the processors, and 1,024 is no multiple of three
        (1023, 8192, 1023, 3),
        (512, 512, 512, 1),  # 16 tiles
        (8192, 8192, 4095, 3),
    ],
)
def test_an_all_reduce_has_as_many_chunks_as_fill_the_device(rows, columns, shard_positions, chunks):
    assert all_reduce_chunks(MatmulShape(rows, 1024, columns, 8, shard_positions)) == chunks


def test_a_tiling_without_chunks_or_with_other_numbers_of_rings_is_refused():
    assert CollectiveTiling(3, 2).parts == 6
    for chunks, rings in ((0, 1), (1, 3), (1, 0)):
        with pytest.raises(ValueError, match=f"CollectiveTiling has {chunks} chunks on {rings} rings"):
            CollectiveTiling(chunks, rings)
