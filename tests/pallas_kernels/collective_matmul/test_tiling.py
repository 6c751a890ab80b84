"""How the collectives of matmuls are cut: the table first, then the heuristics."""

import dataclasses

import pytest

from pallas_kernels.collective_matmul import tiling
from pallas_kernels.collective_matmul.tiling import CollectiveTiling, MatmulShape, all_reduce_chunks, choose_tiling

WORK = MatmulShape(rows=2048, inner=8192, columns=3584, ranks=8, share_positions=1024)


def test_what_was_measured_on_the_nearest_work_is_taken(monkeypatch):
    near, far = (dataclasses.replace(WORK, rows=rows) for rows in (3000, 1100))
    fewer = dataclasses.replace(WORK, ranks=4)
    table = {
        "a device": ((near, CollectiveTiling(2, 1)), (far, CollectiveTiling(4, 2)), (fewer, CollectiveTiling(1, 2)))
    }
    monkeypatch.setattr(tiling, "MEASURED_TILINGS", table)
    assert choose_tiling(WORK, "a device") == CollectiveTiling(2, 1)
    assert choose_tiling(dataclasses.replace(WORK, rows=1200), "a device") == CollectiveTiling(4, 2)
    assert choose_tiling(fewer, "a device") == CollectiveTiling(1, 2)


def test_elsewhere_shares_travel_whole(monkeypatch):
    monkeypatch.setattr(tiling, "MEASURED_TILINGS", {"a device": ((WORK, CollectiveTiling(2, 1)),)})
    for work in (
        dataclasses.replace(WORK, rows=8192),  # another size
        dataclasses.replace(WORK, ranks=2),
        dataclasses.replace(WORK, share_positions=1023),  # which two chunks do not divide
    ):
        assert choose_tiling(work, "a device") == CollectiveTiling()
    assert choose_tiling(WORK, "another device") == CollectiveTiling()


@pytest.mark.parametrize(
    ("rows", "columns", "shared", "chunks"),
    [
        (8192, 8192, 4096, 4),  # 64 x 64 tiles: more than four times the processors
        (1024, 8192, 1024, 2),  # 512 tiles are three times the processors, and 1,024 is no multiple of three
        (1023, 8192, 1023, 3),
        (512, 512, 512, 1),  # 16 tiles
        (8192, 8192, 4095, 3),
    ],
)
def test_sums_are_cut_while_every_chunk_fills_the_device(rows, columns, shared, chunks):
    assert all_reduce_chunks(MatmulShape(rows, 1024, columns, 8, shared)) == chunks


def test_a_tiling_checks_itself():
    assert CollectiveTiling(3, 2).parts == 6
    for chunks, rings in ((0, 1), (1, 3), (1, 0)):
        with pytest.raises(ValueError, match=f"Tiling is {chunks} chunks on {rings} rings"):
            CollectiveTiling(chunks, rings)
