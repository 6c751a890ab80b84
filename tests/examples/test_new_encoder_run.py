"""The example of a kind of encoder in runs: layouts, with a loss of a user's own too; workers, resuming, requests."""

import dataclasses
import itertools
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import mmjax
from configs.common.errors import UserError
from data.packing.pipeline import training_batches
from data.producers.client import remote_batches
from data.records import Media
from mmjax import cli
from mmjax.commands.generate import COMMAND as GENERATE
from mmjax.generation.trained_model import Prompt
from mmjax.training.config import TrainConfig
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.examples.loading import EXAMPLES, load_example
from tests.producers import address_of, end
from tests.unit_plans import module_unit

SMALL = ("DataConfig.rows = 4", "Recordings.count = 40", "SensorConfig.width = 16", "BackboneConfig.depth = 1")
DATA_AND_PIPELINE = Plan(
    (
        module_unit("sensor", (0, 1, 2, 3), layers=(1, 1), dp=2),
        module_unit("backbone", (4, 5), dp=2),
    ),
    microbatches=2,
)


def tensor_parallel(collectives):
    unit = UnitPlan(
        "all", ("sensor", "backbone"), (0, 1), layers=(3,), parallelism=Parallelism(tp=2, collectives=collectives)
    )
    return Plan((unit,), microbatches=1)


@pytest.fixture(scope="module")
def config():
    """A run of the example, whose file is imported as commands import it: by its name, from the current folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(EXAMPLES)
        patch.syspath_prepend(EXAMPLES)
        cli.parse_gin(["new_encoder.gin"], SMALL)
        yield cli.configured(TrainConfig)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """A finished run of four steps: its configuration, its workdir and its metrics."""
    config = dataclasses.replace(config, steps=4, checkpoint_interval=2, log_interval=1, sample_questions=0)
    workdir = tmp_path_factory.mktemp("run") / "run"
    with mmjax.Trainer(config, workdir=workdir) as trainer:
        trainer.fit()
    cli.write_operative_config(str(workdir))
    return config, workdir, mmjax.open_run(workdir).metrics


@pytest.mark.layouts
def test_layouts_have_the_gradients_of_one_device_with_a_loss_of_a_users_own(config):
    loss = load_example("custom_loss").SmoothedCrossEntropy(z_weight=0.1)
    model = dataclasses.replace(config.model, backbone=dataclasses.replace(config.model.backbone, loss=loss))
    plans = {
        "dp, pp": DATA_AND_PIPELINE,
        "sequence_parallel": tensor_parallel("sequence_parallel"),
        "ring": tensor_parallel("ring"),
    }
    reports = mmjax.verify(dataclasses.replace(config, model=model), plans)
    assert [(report.layout, report.ok) for report in reports] == [(name, True) for name in plans]
    assert all(report.modules.keys() == {"sensor", "backbone", "all modules"} for report in reports)


def assert_same_batches(some, others):
    """Asserts that two iterators have the same three batches first, and closes them."""
    for batch, other in itertools.islice(zip(some, others, strict=True), 3):
        jax.tree.map(np.testing.assert_array_equal, batch.arrays, other.arrays)
        assert batch.real_and_capacity == other.real_and_capacity
    some.close()
    others.close()


@pytest.mark.processes
def test_a_worker_process_makes_the_batches_of_this_process(config):
    dataset = config.dataset("train")
    in_worker = training_batches(dataclasses.replace(config.data, workers=1), config.model, dataset)
    assert_same_batches(in_worker, training_batches(config.data, config.model, dataset))


@pytest.mark.processes
def test_a_producer_that_reads_the_gin_file_makes_them_too(config):
    command = [sys.executable, "-m", "mmjax.serve_data", "--gin_file=new_encoder.gin", "--port=0"]
    bindings = [f"--gin.{binding.replace(' ', '')}" for binding in SMALL]
    producer = subprocess.Popen([*command, *bindings], stdout=subprocess.PIPE, text=True)
    try:
        dataset = config.dataset("train")
        remote = remote_batches(config.data, config.model, dataset, (address_of(producer),))
        assert_same_batches(remote, training_batches(config.data, config.model, dataset))
    finally:
        end(producer)


@pytest.mark.runs
def test_a_resumed_run_repeats_the_losses_and_the_score(finished, tmp_path):
    config, workdir, metrics = finished
    (tmp_path / "checkpoints").mkdir()
    shutil.copytree(workdir / "checkpoints" / "2", tmp_path / "checkpoints" / "2")
    with mmjax.Trainer(config, workdir=tmp_path, resume=True) as trainer:
        assert trainer.steps_done == 2
        trainer.fit()
    resumed = mmjax.open_run(tmp_path).metrics
    for name, steps in (("loss/backbone", [3, 4]), ("accuracy", [4])):
        values_by_step = {line["step"]: line[name] for line in metrics if name in line}
        assert {line["step"]: line[name] for line in resumed if name in line} == {
            step: values_by_step[step] for step in steps
        }


@pytest.mark.runs
def test_a_request_with_a_file_is_the_sample_of_the_data_set(finished, tmp_path, capsys):
    config, workdir, _ = finished
    model = mmjax.load_model(workdir, config)
    sample = config.dataset("test").samples_by_kind(model.sample_format)["recording"][3].load(0)
    path = tmp_path / "recording.npy"
    np.save(path, sample.encoder_inputs["windows"].values)
    asked = model.prompt_sample(Prompt("what happens ?", {"windows": [Media.from_file(path)]}), 0)
    length = len(asked.layout.tokens)
    assert length == len(sample.layout.tokens) - 2  # without the answer and the end
    np.testing.assert_array_equal(asked.layout.tokens, sample.layout.tokens[:length])
    np.testing.assert_array_equal(
        asked.layout.encoder_indices["windows"], sample.layout.encoder_indices["windows"][:length]
    )
    jax.tree.map(np.testing.assert_array_equal, asked.encoder_inputs, sample.encoder_inputs)
    answer = mmjax.generate(model, "what happens ?", items={"windows": path}, max_tokens=3)
    flags = [f"--workdir={workdir}", "--prompt=<windows> what happens ?", f"--item=windows={path}", "--max_tokens=3"]
    assert GENERATE.prepare(GENERATE.parse(flags))() == 0
    assert capsys.readouterr().out == f"{answer}\n"


@pytest.mark.runs
@pytest.mark.parametrize(
    ("values", "prompt", "message"),
    [
        (b"no array", "what?", "recording.npy: .*pickle"),
        (np.zeros((4, 5), np.float32), "what?", r"windows have shape \(4, 5\); 16 numbers each are read"),
        (np.zeros((3, 16), np.float32), "what?", "3 windows; they must be a multiple of 2"),
        (np.zeros((4, 16), np.float32), "<windows> <windows>?", "2 <windows> placeholders and 1 files of windows"),
        (None, "is <windows> it?", "1 <windows> placeholders and 0 files of windows"),
    ],
)
def test_files_that_the_encoder_cannot_read_are_refused(finished, tmp_path, values, prompt, message):
    config, workdir, _ = finished
    path = tmp_path / "recording.npy"
    path.write_bytes(values) if isinstance(values, bytes) else np.save(path, values)
    with pytest.raises(UserError, match=message) as caught:
        items = {} if values is None else {"windows": path}
        mmjax.generate(mmjax.load_model(workdir, config), prompt, items=items)
    assert "\n" not in str(caught.value)
