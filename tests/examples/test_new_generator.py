"""The example of a kind of generator: layouts, sampling, and what its registration refuses."""

import dataclasses

import numpy as np
import pytest

import mmjax
from configs.architectures import BackboneConfig, GeneratorConfig, ModelConfig
from configs.common.errors import UserError
from mmjax.models.model import model_modules
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from tests.examples.loading import load_example

PLAN = Plan(
    (
        UnitPlan("trunk", ("vision", "backbone"), (0, 1), layers=(7,), parallelism=Parallelism(dp=2)),
        UnitPlan("generator", ("generator",), (2, 3, 4, 5), parallelism=Parallelism(dp=2, tp=2)),
    ),
    microbatches=2,
)


@pytest.fixture(scope="module")
def example():
    return load_example("new_generator")


@pytest.fixture(scope="module")
def config(example):
    config = mmjax.load("tiny.gin", steps=2)
    (unet,) = config.model.generators
    flow = example.FlowConfig(image_size=8, conditions=unet.conditions, condition_width=8, hidden=16)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, generators=(flow,)))


@pytest.mark.layouts
def test_a_layout_has_the_gradients_of_one_device(config):
    (report,) = mmjax.verify(config, {"dp, tp": PLAN})
    assert report.ok and report.modules["generator"].loss is not None


@pytest.mark.filterwarnings("ignore:the generator has trained on at most 0 images")
def test_images_depend_on_description_and_seed_alone(config):
    with mmjax.Trainer(config, plan=PLAN) as trainer:
        blue, again, other = (
            np.asarray(mmjax.draw(trainer, text, seed=seed, sampling_steps=3))
            for text, seed in (("a blue circle", 1), ("a blue circle", 1), ("a red square", 1))
        )
    assert blue.shape == (8, 8, 3)
    np.testing.assert_array_equal(blue, again)
    assert np.any(blue != other)


def test_a_second_registration_and_costs_of_other_parameters_are_refused(example):
    nothing = dict.fromkeys(("specs", "modules", "sample"), lambda *arguments: None)
    with pytest.raises(UserError, match="FlowConfig is registered already"):
        mmjax.register_generator(example.FlowConfig, **nothing)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Unknown(GeneratorConfig):
        pass

    with pytest.raises(UserError, match="Unknown is no known kind of generator; call mmjax.register_generator"):
        module_graph(ModelConfig((), BackboneConfig(), (Unknown(),)))

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Wider(example.FlowConfig):
        pass

    mmjax.register_generator(
        Wider,
        specs=lambda config, backbone: example.costs(dataclasses.replace(config, hidden=2 * config.hidden), backbone),
        modules=lambda config, backbone: example.image_generator_module(
            config, backbone, example.Piece(name="flow", part=config.name, build=lambda: example.FlowLoss(config))
        ),
        sample=example.draw,
    )
    with pytest.raises(UserError, match="parameters in 'flow', the module has"):
        model_modules(ModelConfig((), BackboneConfig(), (Wider(),)))
