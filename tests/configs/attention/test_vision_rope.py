"""Frequencies of rotary positions in two dimensions, and the options that contradict each other."""

import numpy as np
import pytest

from configs.attention.vision_rope import VisionRope


def test_rows_and_columns_share_frequencies_or_take_them_in_turn():
    rows, columns = VisionRope(16.0).axis_frequencies(8)
    np.testing.assert_allclose([rows, columns], [[1, 1 / 4]] * 2)
    rows, columns = VisionRope(16.0, frequencies="alternate").axis_frequencies(8)
    np.testing.assert_allclose(rows, [1, 1 / 4])
    np.testing.assert_allclose(columns, [1 / 2, 1 / 8])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"base": 0.0}, "base is 0.0"),
        ({"frequencies": "rows"}, "frequencies is 'rows'; choose from shared, alternate"),
        ({"coordinates": "pixels"}, "coordinates is 'pixels'; choose from index, number, centred"),
        ({"grid": -1}, "grid is -1"),
        ({"grid": 4, "coordinates": "centred"}, "grid is 4, but only coordinates = 'index'"),
    ],
)
def test_contradictory_options_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        VisionRope(**options)
