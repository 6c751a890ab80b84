"""Configurations that include those of the configs package, from wherever they are."""

import pytest

from mmjax import cli
from mmjax.training.config import TrainConfig


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_configuration_in_a_folder_below_includes_a_packaged_one(in_folder):
    (in_folder / "mine").mkdir()
    (in_folder / "mine" / "run.gin").write_text('include "tiny.gin"\n\nSTEPS = 7\n')
    cli.parse_gin(("mine/run.gin",))
    assert cli.configured(TrainConfig).steps == 7


def test_a_folder_named_like_one_of_the_packaged_configurations_hides_none(in_folder):
    (in_folder / "models").mkdir()
    (in_folder / "run.gin").write_text('include "models/mllm_9b.gin"\n')
    cli.parse_gin(("run.gin",))
    assert cli.is_bound("VisionConfig.width") or cli.is_bound("vit_huge/VisionConfig.width")
