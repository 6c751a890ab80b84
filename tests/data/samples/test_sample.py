import numpy as np
import pytest

from data.errors import DataError
from data.samples.audio_format import FrameFormat
from data.samples.encoder_format import EncoderInputs, concatenate_encoder_inputs, empty_encoder_inputs
from data.samples.token_layout import lay_out_tokens


def test_targets_without_a_preceding_token_are_refused():
    with pytest.raises(DataError, match="first token of a trunk or branch cannot be a target"):
        lay_out_tokens([1], [[9, 2]], [(), (0,)], {})


def test_every_encoder_has_placeholders_of_its_own():
    layout = lay_out_tokens([1, 4, 7, 4], [[7]], [(), ()], {"patches": 4, "frames": 7})
    assert layout.encoder_indices["patches"].tolist() == [-1, 0, -1, 1, -1]
    assert layout.encoder_indices["frames"].tolist() == [-1, -1, 0, -1, 1]
    assert layout.encoder_indices["frames"].dtype == np.int32


def test_encoder_inputs_are_concatenated_and_renumbered():
    form = FrameFormat(mels=2, merge=1, max_length=8)
    parts = [
        EncoderInputs(np.full((length, 2), length, np.float32), np.ones(length // 2, np.int32), np.arange(length // 2))
        for length in (2, 4)
    ]
    joined = concatenate_encoder_inputs(parts, form)
    assert joined.item_ids.tolist() == [1, 2, 2] and joined.positions.tolist() == [0, 0, 1]
    assert joined.values[:, 0].tolist() == [2, 2, 4, 4, 4, 4]
    assert [array.shape for array in concatenate_encoder_inputs([], form)] == [
        array.shape for array in empty_encoder_inputs(form)
    ]
