import numpy as np
import pytest

from data.errors import DataError
from data.formats import FrameFormat
from data.samples import Stream, empty_stream, join_streams, lay_out


def test_a_target_that_nothing_predicts_is_refused():
    with pytest.raises(DataError, match="first token of a trunk or branch cannot be a target"):
        lay_out([1], [[9, 2]], [(), (0,)], {})


def test_every_stream_has_placeholders_of_its_own():
    layout = lay_out([1, 4, 7, 4], [[7]], [(), ()], {"patches": 4, "frames": 7})
    assert layout.indices["patches"].tolist() == [-1, 0, -1, 1, -1]
    assert layout.indices["frames"].tolist() == [-1, -1, 0, -1, 1]
    assert layout.indices["frames"].dtype == np.int32


def test_streams_are_joined_and_numbered_anew():
    form = FrameFormat(mels=2, merge=1, most=8)
    parts = [
        Stream(np.full((length, 2), length, np.float32), np.ones(length // 2, np.int32), np.arange(length // 2))
        for length in (2, 4)
    ]
    joined = join_streams(parts, form)
    assert joined.items.tolist() == [1, 2, 2] and joined.positions.tolist() == [0, 0, 1]
    assert joined.values[:, 0].tolist() == [2, 2, 4, 4, 4, 4]
    assert [array.shape for array in join_streams([], form)] == [array.shape for array in empty_stream(form)]
