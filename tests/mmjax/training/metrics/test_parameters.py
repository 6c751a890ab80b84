"""A configuration as flat parameters."""

import functools

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.optimizer import OptimizerConfig
from data.datasets.easy_vqa import EasyVQA
from mmjax.training.config import TrainConfig
from mmjax.training.metrics.parameters import flat_parameters
from mmjax.training.metrics.trackers import WandbWriter


def test_every_value_of_a_run_has_a_name_of_its_own():
    config = TrainConfig(
        dataset=functools.partial(EasyVQA, image_paths=None),
        model=ModelConfig((VisionConfig(name="eye", width=96),), BackboneConfig(width=128)),
        optimizer=OptimizerConfig(learning_rate=8e-4),
        require_plan=False,
        pretrained_weights=(("backbone", "weights/llama"), ("eye", "weights/clip")),
        writers=(WandbWriter,),
    )
    parameters = flat_parameters(config)
    assert parameters["model.encoders.eye.width"] == 96 and parameters["model.backbone.width"] == 128
    assert parameters["optimizer.learning_rate"] == 8e-4
    assert parameters["require_plan"] is False
    assert parameters["dataset"] == "data.datasets.easy_vqa.EasyVQA"
    assert parameters["pretrained_weights"] == "backbone, weights/llama, eye, weights/clip"
    assert parameters["writers"] == "mmjax.training.metrics.trackers.WandbWriter"
    assert parameters["trainable"] == "all"
    assert parameters["model.backbone.experts"] == "none"
    assert all(isinstance(value, str | int | float | bool) for value in parameters.values())
