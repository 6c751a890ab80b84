"""What the functions of the interface return shows itself on a screen: at most 12 lines of 100 columns."""

import dataclasses
import functools
import importlib
import inspect
import pathlib
import pkgutil

import jax
import numpy as np
import pytest

import configs
import mmjax
from configs.clusters import CLUSTERS
from configs.common.errors import UserError
from configs.common.short_repr import LINES, WIDTH, short_repr
from configs.optimizer import Lion, OptimizerConfig
from mmjax.planning.timed_plans import TimedPlan, TimedPlans
from mmjax.reporting.run_folder import Run
from mmjax.training.profiling.step_times import StepTimes
from mmjax.training.steps import StepResult
from mmjax.training.verification.error_measures import LARGEST_ERROR
from mmjax.training.verification.reports import Difference, LayoutReport, ModuleReport
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.dry_runs import made_dry_run
from tests.small_vqa import SmallVQA


def assert_fits(value, *shown: str) -> None:
    text = repr(value)
    lines = text.splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH, text
    for part in shown:
        assert part in text, text


@functools.cache
def tiny():
    return mmjax.load("tiny.gin", steps=20)


@functools.cache
def planned():
    return mmjax.plan("models/mllm_9b.gin", cluster="a800", devices=96, policy="disaggregated")


def check_plan() -> None:
    assert_fits(planned(), "disaggregated")
    assert_fits(planned().plan, "UnitPlan(name='vision'", "UnitPlan(name='backbone'", "made_for=")
    assert_fits(planned().plan.units[0], "devices=range(")
    assert_fits(planned().plan.made_for)
    assert_fits(planned().timeline, "2896 ops")


def check_trainer() -> None:
    with mmjax.Trainer(tiny()) as trainer:
        assert_fits(trainer, "Trainer(step 0 of 20, on ", "devices: ")
        assert_fits(trainer.state, "master_weights=")
        assert_fits(next(trainer.batches), "GlobalBatch(", "int32[12, 256]")
        assert_fits(trainer.tokenizer, "in all")
        assert_fits(trainer.engine)
        assert_fits(trainer.batches)
        for sample in trainer.batches.load_samples(np.arange(3)):
            assert_fits(sample, "Sample(")
    losses = {"backbone": 4.171487808227539, "generator": 0.8878965377807617}
    assert_fits(StepResult(step=1, losses=losses, gradient_norm=2.389191234), "'backbone': 4.17149, 'generator': 0.88")


def check_records() -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    dataset = mmjax.from_records([{"image": image, "question": "What?", "answer": "red"}])
    assert_fits(dataset, "Conversations(")


def check_timed() -> None:
    plan = Plan((UnitPlan("all", ("vision",), (0,)),))
    times = (StepTimes(seconds=(0.25, 0.5)), StepTimes(error="this plan needs 90 GB, and a device has 80 GB"))
    timed = tuple(
        TimedPlan(name, plan, 1.0, step_times) for name, step_times in zip(("one", "other"), times, strict=True)
    )
    assert_fits(TimedPlans(timed, "NVIDIA H100 80GB HBM3", "h100"), "one", "other")


def check_reports() -> None:
    fine, wrong = Difference(0.1, 0.2, "mlp"), Difference(LARGEST_ERROR, 0.2, "mlp")
    modules = {"vision": ModuleReport(loss=fine), "backbone": ModuleReport(gradient=wrong)}
    assert repr(LayoutReport("fsdp", modules)) == "LayoutReport('fsdp': not ok in backbone)"
    assert repr(LayoutReport("fsdp", {"vision": modules["vision"]})) == "LayoutReport('fsdp': ok)"
    assert_fits(modules["backbone"], "gradient=Difference(")


CHECKS = {
    "TrainConfig": lambda: assert_fits(mmjax.TrainConfig(dataset=SmallVQA), "TrainConfig(dataset=SmallVQA)"),
    "Trainer": check_trainer,
    "describe_data": lambda: assert_fits(mmjax.describe_data(tiny(), samples=20, examples=False), "20 samples"),
    "dryrun": lambda: assert_fits(made_dry_run(), "2 programs for h100", "16 devices"),
    "from_records": check_records,
    "load": lambda: assert_fits(tiny(), "dataset=EasyVQA", "steps=20"),
    "open_run": lambda: assert_fits(Run(pathlib.Path("runs/short")), "Run('runs/short')"),
    "plan": check_plan,
    "simulate": lambda: assert_fits(mmjax.simulate(planned().plan), "Timeline("),
    "time_plans": check_timed,
    "verify": check_reports,
}
OF_OTHERS = {
    "draw": "a Pillow image",
    "generate": "a text",
    "load_model": "a TrainedModel, of configurations that are checked",
    **dict.fromkeys(("register_encoder", "register_generator", "register_policy", "register_schedule"), "nothing"),
    "use_cpu_devices": "nothing",
}
"""What other names return, which mmjax does not represent."""


@pytest.mark.parametrize("name", mmjax.__all__)
def test_what_a_name_of_the_interface_returns_fits_a_screen(name):
    assert (name in CHECKS) != (name in OF_OTHERS)
    if name in CHECKS:
        CHECKS[name]()


@pytest.mark.parametrize("file", ["quickstart.gin", "easy_vqa.gin", "spoken_vqa.gin"])
def test_configurations_of_the_package_fit_a_screen(file):
    config = mmjax.load(file)
    for value in (config, config.model, config.data, config.optimizer, config.engine_settings, config.model.backbone):
        assert_fits(value, f"{type(value).__name__}(")


def test_every_configuration_fits_a_screen_with_all_its_defaults_left_out():
    kinds = set()
    for module in pkgutil.iter_modules(configs.__path__):
        for kind in vars(importlib.import_module(f"configs.{module.name}")).values():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__.startswith("configs."):
                required = [f for f in dataclasses.fields(kind) if f.init and f.default is f.default_factory]
                if not required and not inspect.isabstract(kind):
                    kinds.add(kind)
                    if len(dataclasses.fields(kind)) > 3:
                        assert repr(kind()) == f"{kind.__name__}()"
    assert OptimizerConfig in kinds and len(kinds) > 15
    for cluster in CLUSTERS.values():
        assert_fits(cluster, "ClusterConfig(")


def test_a_message_that_quotes_a_configuration_stays_one_line():
    with pytest.raises(UserError) as refused:
        mmjax.load("tiny.gin", model=mmjax.load("quickstart.gin"))
    assert "\n" not in str(refused.value) and "TrainConfig.model is TrainConfig(" in str(refused.value)
    with pytest.raises(UserError) as refused:
        mmjax.time_plans(mmjax.load("quickstart.gin").model)  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(refused.value) and "config is ModelConfig(" in str(refused.value)


@dataclasses.dataclass
class Record:
    values: tuple[int, ...] = ()
    array: object = None
    kinds: tuple[object, ...] = ()
    names: dict[str, object] = dataclasses.field(default_factory=dict)
    hidden: int = dataclasses.field(default=0, repr=False)

    __repr__ = short_repr


def test_defaults_and_hidden_fields_are_left_out_and_long_values_cut():
    assert repr(Record(hidden=3)) == "Record()"
    assert repr(Record(values=(1, 2, 3, 4))) == "Record(values=(1, 2, 3, 4))"
    assert repr(Record(values=tuple(range(96)))) == "Record(values=(0, 1, 2, ... 96 in all))"
    assert repr(Record(array=np.zeros((2, 3), np.float32))) == "Record(array=float32[2, 3])"
    abstract = jax.ShapeDtypeStruct((4,), np.int32)
    assert repr(Record(array=abstract, values=(1,))) == "Record(values=(1,), array=int32[4])"
    assert repr(Record(array=functools.partial(SmallVQA, poisoned=7))) == "Record(array=SmallVQA(poisoned=7))"
    several = Record(kinds=tuple(OptimizerConfig(learning_rate=rate, algorithm=Lion()) for rate in (0.1, 0.2)))
    assert repr(several).splitlines() == [
        "Record(",
        "    kinds=(",
        "        OptimizerConfig(algorithm=Lion(), learning_rate=0.1),",
        "        OptimizerConfig(algorithm=Lion(), learning_rate=0.2),",
        "    ),",
        ")",
    ]
    assert_fits(Record(names={str(number): "x" * 300 for number in range(9)}), "xxx..., '1': ", " ...\n)")
    many_kinds = Record(kinds=(several,) * 40)
    assert_fits(many_kinds, "    ...")
