"""Frames, and the error where pandas is missing."""

import sys

import numpy as np
import pytest

from configs.common.errors import UserError
from sharding.frames import make_frame


def test_columns_become_a_frame():
    frame = make_frame({"name": ["a", "b"], "n": np.array([1, 2])})
    assert list(frame.columns) == ["name", "n"] and frame.n.sum() == 3 and frame.name[1] == "b"


def test_a_missing_pandas_is_named_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError) as error:
        make_frame({})
    assert "needs the package pandas" in str(error.value) and "mmjax[notebook]" in str(error.value)
    assert "\n" not in str(error.value)
