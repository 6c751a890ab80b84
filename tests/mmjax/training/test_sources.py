"""Training from every kind of source, under every grouping policy: seen, heard, read and drawn in the same batches."""

import dataclasses

import numpy as np
import pytest

from configs.architectures import AudioConfig, BackboneConfig, ModelConfig, VisionConfig
from data.data_config import DataConfig
from data.packing.grouping.grouping_policies import GROUPING_POLICIES
from data.packing.pipeline import training_batches
from mmjax.training.config import TrainConfig
from mmjax.training.metrics.progress import make_progress
from mmjax.training.metrics.writers import open_metrics_writer
from mmjax.training.trainer import Trainer
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan, single_device_plan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from tests.data import mixed_sources
from tests.tiny_model import TRANSFORMER_GENERATOR

MODEL = ModelConfig(
    (
        VisionConfig(width=8, depth=1, heads=2, ffn=8, patch=8),
        AudioConfig(width=8, depth=1, heads=2, ffn=8, mels=8, merge=10),
    ),
    BackboneConfig(vocabulary=267, width=16, depth=2, heads=2, kv_heads=2, ffn=16),
    (dataclasses.replace(TRANSFORMER_GENERATOR, image_size=8),),
)
DATA = DataConfig(rows=4, tokens=384, patches=64, frames=1600, images=2, samples=8, window=32)
PLAN = Plan(
    (
        UnitPlan("vision", ("vision",), (0, 1), parallelism=Parallelism(dp=2)),
        UnitPlan("audio", ("audio",), (2,)),
        UnitPlan("backbone", ("backbone",), (3, 4), layers=(2,), parallelism=Parallelism(dp=2)),
        UnitPlan("generator", ("generator",), (5,)),
    ),
    microbatches=2,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return mixed_sources.write(tmp_path_factory.mktemp("sources"))


def trained(source, workdir, plan, **data):
    """The losses and counters of a short run."""
    config = TrainConfig(dataset=source, model=MODEL, data=dataclasses.replace(DATA, **data), steps=2, log_interval=1)
    trainer = Trainer(config, plan, workdir, resume=False)
    progress, metrics = make_progress(config.steps), open_metrics_writer(str(workdir))
    try:
        return trainer.fit(progress, metrics)
    finally:
        for resource in (progress, metrics, trainer):
            resource.close()


def test_every_source_brings_samples_of_its_own(source):
    batches = training_batches(DATA, MODEL, source("train"))
    seen = [next(batches) for _ in range(8)]
    counters = batches.counters()
    batches.close()
    assert set(counters["samples"]) == {"llava", "laion", "table", "speech", "records"}
    for module in ("vision", "audio", "backbone", "generator"):
        assert sum(batch.real_and_capacity[module][0] for batch in seen) > 0
    assert counters["unreadable_samples"] == 0


@pytest.mark.layouts
def test_layouts_agree_on_all_modalities(source, tmp_path):
    alone = trained(source, tmp_path / "one", single_device_plan(module_graph(MODEL)))
    apart = trained(source, tmp_path / "spread", PLAN)
    assert set(alone.losses) == {"backbone", "generator"} and alone.score is None
    for name, loss in alone.losses.items():
        assert loss > 0
        np.testing.assert_allclose(apart.losses[name], loss, rtol=1e-5)


@pytest.mark.runs
@pytest.mark.parametrize("grouping", list(GROUPING_POLICIES))
def test_every_grouping_policy_trains(source, tmp_path, grouping):
    result = trained(source, tmp_path / "run", single_device_plan(module_graph(MODEL)), grouping=grouping)
    assert result.step == 2 and np.isfinite(list(result.losses.values())).all()
    assert result.data_counters["batches"] == 2 and not result.data_counters["oversized_samples"]
