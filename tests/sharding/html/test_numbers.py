import pytest

from sharding.html.numbers import (
    count,
    count_of,
    nice_step,
    percent,
    seconds,
    seconds_range,
    size,
    tick_labels,
    ticks,
)


def test_what_is_counted_is_in_the_singular_or_the_plural():
    counted = [count_of(1, "microbatch"), count_of(2, "process"), count_of(0, "step"), count_of(1200, "device")]
    assert counted == ["1 microbatch", "2 processes", "0 steps", "1,200 devices"]


def test_numbers_for_people():
    assert [count(value) for value in (3, 3.25, 1234.5, 1e6)] == ["3", "3.2", "1,234", "1,000,000"]
    assert [percent(share) for share in (0.1234, 0, 1, None)] == ["12.3%", "0.0%", "100.0%", "·"]
    assert [seconds(value) for value in (0, 12.3456, 0.0012345, 2.5e-6, 12345)] == [
        "0 s",
        "12.35 s",
        "1.234 ms",
        "2.500 µs",
        "12,345 s",
    ]
    assert seconds_range(1.7384, 12.0) == "1.74 to 12.0 s" and seconds_range(0.9, 0.99) == "900 to 990 ms"
    assert [size(bytes_) for bytes_ in (12.34e9, 1.2e6, 0)] == ["12.3 GB", "1.20 MB", "0 kB"]


@pytest.mark.parametrize(
    ("low", "high", "most", "labels"),
    [
        (0, 10, 5, ["0", "2", "4", "6", "8", "10"]),
        (0, 1, 4, ["0.0", "0.5", "1.0"]),
        (-0.3, 0.3, 6, ["-0.3", "-0.2", "-0.1", "0.0", "0.1", "0.2", "0.3"]),
        (0, 0.035, 4, ["0.00", "0.01", "0.02", "0.03"]),
        (990, 2100, 3, ["1,000", "1,500", "2,000"]),
        (7, 7, 3, ["7"]),
    ],
)
def test_ticks_are_multiples_of_1_2_or_5_with_equal_decimals(low, high, most, labels):
    assert tick_labels(ticks(low, high, most)) == labels


def test_steps_are_the_smallest_that_fit():
    assert [nice_step(span, 5) for span in (5, 5.1, 10, 10.1, 25, 26, 0.5)] == pytest.approx([1, 2, 2, 5, 5, 10, 0.1])
