"""The file of metrics after a kill, a resume and damage."""

import json

import pytest

from configs.common.errors import UserError
from mmjax.training.metrics.metrics_file import METRICS_FILE, drop_later_metrics, read_metrics


def write(folder, text: str) -> None:
    (folder / METRICS_FILE).write_text(text)


def test_a_half_written_last_line_is_left_out(tmp_path):
    assert read_metrics(tmp_path) == []
    write(tmp_path, '{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    assert read_metrics(str(tmp_path)) == [{"step": 1, "loss": 0.5}]
    (tmp_path / METRICS_FILE).write_bytes(b'{"step": 1}\n{"step": 2, "caf\xc3')  # killed within a character
    assert read_metrics(tmp_path) == [{"step": 1}]


@pytest.mark.parametrize("line", ["\x00\x00\x00", "[1]", '{"loss": 1}', '{"step": "1"}', ""])
def test_another_damaged_line_is_named(tmp_path, line):
    write(tmp_path, f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(UserError, match=rf"{METRICS_FILE}:2") as caught:
        read_metrics(tmp_path)
    assert "\n" not in str(caught.value)


def test_lines_after_a_checkpoint_are_dropped_and_those_before_stay(tmp_path):
    lines = [{"step": 2, "loss": 0.5}, {"step": 3, "accuracy": None}, {"step": 3, "loss": 0.25}, {"step": 5}]
    write(tmp_path, "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 6')
    drop_later_metrics(tmp_path, 3)
    assert read_metrics(tmp_path) == lines[:3]
    assert (tmp_path / METRICS_FILE).read_text().endswith("}\n"), "the half-written line is gone"
    assert [path.name for path in tmp_path.iterdir()] == [METRICS_FILE]
