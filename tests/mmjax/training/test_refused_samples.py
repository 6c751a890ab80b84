"""A trainer lists refused samples in its workdir, and refuses a capacity that nothing fits before it compiles."""

import dataclasses
import json

import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from data.data_config import DataConfig
from data.datasets.from_records import from_records
from data.errors import DataError
from mmjax.training.config import TrainConfig
from mmjax.training.trainer import Trainer

MODEL = ModelConfig(
    (VisionConfig(width=8, depth=1, heads=2, ffn=8),), BackboneConfig(vocabulary=267, width=8, depth=1, ffn=8), ()
)
DATA = DataConfig(rows=2, tokens=64, patches=16, images=0)


def half_missing(split):
    image = np.zeros((16, 16, 3), np.uint8)
    images = [f"gone_{number}.png" if number % 2 else image for number in range(8)]
    return from_records([{"image": image, "question": "?", "answer": "!"} for image in images])


def test_a_run_that_ends_for_refused_samples_names_the_list_of_all_of_them(tmp_path):
    config = TrainConfig(dataset=half_missing, model=MODEL, data=DATA)
    run = tmp_path / "run"
    run.mkdir()
    for name in ("unreadable.jsonl", "oversized.jsonl"):  # of an earlier run in the folder, which this one replaces
        (run / name).write_text("{}\n")
    trainer = Trainer(config, workdir=run)
    with pytest.raises(DataError, match="4 of 8 samples .* more than DataConfig.max_refused_share") as caught:
        trainer.step()
    trainer.close()
    assert f"listed in {run / 'unreadable.jsonl'}" in str(caught.value)
    listed = [json.loads(line)["key"] for line in (run / "unreadable.jsonl").read_text().splitlines()]
    assert sorted(listed) == [f"records[{number}]" for number in (1, 3, 5, 7)]
    assert not (run / "oversized.jsonl").exists()


def test_a_capacity_that_no_sample_fits_is_refused_before_the_first_step(tmp_path):
    config = TrainConfig(dataset=half_missing, model=MODEL, data=dataclasses.replace(DATA, tokens=3))
    with pytest.raises(DataError, match=r"records: none of 4 samples fits into a row: .* \(DataConfig.tokens = 3\)"):
        Trainer(config, workdir=tmp_path)
