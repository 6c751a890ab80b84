import concurrent.futures
import logging

import pytest

from data.errors import BadSampleError, DataError
from data.report import Refusals


def test_an_image_is_counted_once_whoever_asks_for_it(caplog):
    refusals = Refusals(image_count=100, max_corrupt_share=0.2, kind_sizes={"vqa": 100})
    numbers = [number for number in range(20) for _ in range(5)]
    with caplog.at_level(logging.WARNING, logger="data"), concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: refusals.corrupt(number, BadSampleError(f"{number}.png", "cut")), numbers))
    assert refusals.corrupt_images == len(caplog.records) == 20
    with pytest.raises(DataError, match=r"21 of 100 images cannot be read: 21\.00%, more than .* = 20\.00%"):
        refusals.corrupt(20, BadSampleError("20.png", "cut"))


def test_no_corrupt_image_is_allowed_at_share_zero():
    with pytest.raises(DataError, match=r"1 of 100 .*a\.png \(sample 4\)"):
        Refusals(100, 0.0, {}).corrupt(4, BadSampleError("a.png", "cut"))


def test_an_oversized_sample_is_counted_once(caplog):
    refusals = Refusals(image_count=1, max_corrupt_share=0.0, kind_sizes={"vqa": 2, "text": 9})
    with caplog.at_level(logging.WARNING, logger="data"):
        for number, kind in ((0, "vqa"), (0, "vqa"), (5, "text"), (0, "vqa")):
            refusals.oversized(number, kind, "9 tokens where a row holds 8")
    assert refusals.oversized_samples == len(caplog.records) == 2
    with pytest.raises(DataError, match="not one of 2 vqa samples fits a row; the last: 9 tokens"):
        refusals.oversized(1, "vqa", "9 tokens where a row holds 8")
