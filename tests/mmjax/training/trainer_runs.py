"""Runs of a trainer that are shared by its tests: a small model on small data, and what a run is asked for."""

import dataclasses

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.optimizer import OptimizerConfig
from data.data_config import DataConfig
from mmjax.training.config import TrainConfig
from mmjax.training.metrics.metrics_file import read_metrics
from mmjax.training.metrics.writers import open_metrics_writer
from mmjax.training.trainer import Trainer
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.small_vqa import SmallVQA
from tests.tiny_model import TRANSFORMER_GENERATOR

MODEL = ModelConfig(
    (VisionConfig(width=16, depth=1, heads=2, ffn=32, patch=16),),
    BackboneConfig(vocabulary=48, width=16, depth=2, heads=2, kv_heads=2, ffn=32),
    (dataclasses.replace(TRANSFORMER_GENERATOR, image_size=8),),
)
DATA = DataConfig(rows=4, tokens=256, patches=32, images=2, mixture=(("vqa", 1.0), ("description", 0.5)))
PLAN = Plan(
    (
        UnitPlan("vision", ("vision",), (0,)),
        UnitPlan("backbone", ("backbone",), (1, 2), layers=(1, 1), recompute=("none", "none")),
        UnitPlan("generator", ("generator",), (3,)),
    ),
    microbatches=2,
)
CONFIG = TrainConfig(
    dataset=SmallVQA,
    model=MODEL,
    data=DATA,
    optimizer=OptimizerConfig(learning_rate=3e-3, warmup_steps=2),
    steps=6,
    checkpoint_interval=3,
    log_interval=1,
)


class Recorder:
    """A progress display that keeps what it is shown, and may do something at a step."""

    def __init__(self, at: int = -1, then=lambda: None) -> None:
        self.losses: dict[int, dict[str, float]] = {}
        self._at, self._then = at, then

    def update(self, report) -> None:
        self.losses[report.step] = dict(report.losses)
        if report.step == self._at:
            self._then()

    def show(self, activity, done, total, remark="") -> None:
        pass

    def close(self) -> None:
        pass


def run(workdir, plan=PLAN, resume=False, recorder=None, config=CONFIG):
    recorder = recorder or Recorder()
    trainer = Trainer(config, plan, workdir, resume)
    metrics = open_metrics_writer(str(workdir), trainer.steps_done)
    try:
        return trainer.fit(recorder, metrics), recorder.losses
    finally:
        metrics.close()
        trainer.close()


TIMED = ("seconds/", "tokens_per_second", "mfu")


def written(workdir) -> list[dict[str, float]]:
    """The lines of metrics without what was measured by a clock."""
    return [{n: v for n, v in line.items() if not n.startswith(TIMED)} for line in read_metrics(workdir)]
