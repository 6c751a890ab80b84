"""`python -m mmjax.convert`, and a run that starts from published weights and gives them back."""

import contextlib
import dataclasses
import io
import os
import subprocess
import sys

import gin
import pytest

from configs.architectures import BackboneConfig
from configs.common.errors import UserError
from mmjax import cli
from mmjax.commands import convert
from mmjax.training.config import TrainConfig
from mmjax.training.trainer import Trainer
from mmjax.weights.published_checkpoint import open_checkpoint
from sharding.plans.plan import Plan
from tests.mmjax.weights.llama_checkpoint import bits, model, random_tensors, write_llama

BACKBONE = BackboneConfig(vocabulary=48, width=16, depth=2, heads=4, kv_heads=2, ffn=24)

GIN = """
from __gin__ import dynamic_registration
from configs import architectures
from data import data_config
from mmjax.training import config
from tests import small_vqa
include "tiny.gin"
include "llama.gin"
config.TrainConfig:
  dataset = @small_vqa.SmallVQA
  steps = 1
  sample_questions = 0
  sample_images = 0
  trainable = ("projectors",)
architectures.ModelConfig.generators = ()
data_config.DataConfig.images = 0
small_vqa.SmallVQA.images = 8
data_config.DataConfig.mixture = (("vqa", 1.0),)
"""

GIN_OF_ANOTHER = """
from __gin__ import dynamic_registration
from configs import architectures
architectures.ModelConfig.encoders = ()
architectures.ModelConfig.generators = ()
architectures.ModelConfig.backbone = @architectures.BackboneConfig()
architectures.BackboneConfig:
  vocabulary = 50
  width = 16
  depth = 2
  ffn = 24
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("llama") / "llama", random_tensors(BACKBONE), BACKBONE)


@pytest.fixture(scope="module")
def workdir(llama):
    """Of a run of one step that trains the projectors alone and starts from the checkpoint."""
    folder = llama.parent
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit, match="0"):
        cli.run(convert.COMMAND, [f"--folder={llama}", "--print"])
    (folder / "llama.gin").write_text(printed.getvalue())
    (folder / "run.gin").write_text(GIN)
    command = [sys.executable, "-m", "mmjax.train", f"--gin_file={folder / 'run.gin'}", f"--workdir={folder / 'run'}"]
    environment = os.environ | {"XLA_FLAGS": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def run(capsys):
    def called(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            cli.run(convert.COMMAND, arguments)
        said = capsys.readouterr()
        assert left.value.code == code, said
        told = [line for line in said.err.splitlines() if not line.startswith(("writing ", "wrote "))]
        assert len(told) == bool(code), "an error is one line"
        return said.out + said.err

    yield called
    gin.clear_config()


def tensors_of(path) -> dict:
    folder = open_checkpoint(path).folder
    return {name: bits(folder.read(name)) for name in folder.tensors}


@pytest.mark.processes
def test_frozen_weights_are_exported_bit_identically(run, workdir, llama, tmp_path):
    said = run(f"--workdir={workdir}", "--part=backbone", f"--output={tmp_path / 'out'}", "--shard_size=4KB")
    assert "LlamaForCausalLM, step 1; config.json, model-00001-of" in said
    assert tensors_of(tmp_path / "out") == tensors_of(llama)
    assert (tmp_path / "out/config.json").is_file()


@pytest.mark.processes
def test_a_model_type_is_needed_without_an_original(run, workdir, llama, tmp_path):
    wanted = (f"--workdir={workdir}", f"--output={tmp_path / 'out'}")
    assert "give --original=FOLDER of one to be like, or --model_type" in run(*wanted, "--part=vision", code=2)
    run(*wanted, "--part=backbone", "--model_type=llama", "--dtype=bfloat16", "--step=1")
    assert tensors_of(tmp_path / "out") == tensors_of(llama)
    assert "not empty" in run(*wanted, "--part=backbone", code=2)


def test_a_folder_is_checked_and_described(run, llama):
    assert "is a LlamaForCausalLM; 21 tensors give backbone all that it needs" in run(f"--folder={llama}")


def test_a_folder_is_compared_with_a_configuration(run, llama, tmp_path):
    (tmp_path / "mine.gin").write_text(GIN_OF_ANOTHER)
    said = run(f"--folder={llama}", "--part=backbone", f"--gin_file={tmp_path / 'mine.gin'}", code=2)
    assert "vocab_size is 48 in the checkpoint and 50 in the model" in said
    assert "shape: lm_head.weight is [48, 16], and backbone/head/000/embedding needs [50, 16]" in said
    named = "from mmjax.training import config\nconfig.TrainConfig.pretrained_changes = ('vocabulary',)\n"
    (tmp_path / "named.gin").write_text(GIN_OF_ANOTHER + named)
    said = run(f"--folder={llama}", "--part=backbone", f"--gin_file={tmp_path / 'named.gin'}")
    assert "21 tensors give backbone all that it needs" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --folder"),
        (("--folder=x", "--workdir=y"), "give --folder"),
        (("--folder=/no/such",), "there is no folder"),
        (("--workdir=/no/such",), "--output is missing"),
        (("--workdir=/no/such", "--output=out"), "is no folder"),
        (("--workdir=x", "--output=out", "--shard_size=much"), "not a file size"),
    ],
)
def test_invalid_flags_are_refused(run, arguments, said):
    assert said in run(*arguments, code=2)


def test_a_checkpoint_that_lacks_tensors_is_refused_before_the_run(run, tmp_path):
    tensors = random_tensors(BACKBONE)
    del tensors["model.norm.weight"]
    path = write_llama(tmp_path / "llama", tensors, BACKBONE)
    said = run(f"--folder={path}", code=2)
    assert "missing: model.norm.weight, which is backbone/head/000/norm/scale" in said
    del tensors["model.layers.1.mlp.up_proj.weight"]
    path = write_llama(tmp_path / "other", tensors, BACKBONE)
    listed = [line.partition(",")[0] for line in run(f"--folder={path}", code=2).splitlines()]
    assert sorted(listed[:-1]) == ["missing: model.layers.1.mlp.up_proj.weight", "missing: model.norm.weight"]
    assert listed[-1] == f"error: {path} does not fit 'backbone'; the 2 problems are listed above"
    assert dataclasses.asdict(open_checkpoint(path).config) == dataclasses.asdict(model(BACKBONE).backbone)


@pytest.mark.processes
def test_a_resumed_run_ignores_published_weights(workdir):
    cli.parse_gin((str(workdir / cli.OPERATIVE_CONFIG),))
    config = dataclasses.replace(cli.configured(TrainConfig), pretrained_weights=(("backbone", "/no/such"),))
    plan = Plan.load(workdir / "plan.json")
    trainer = Trainer(config, plan, workdir, resume=True)
    trainer.close()
    assert trainer.steps_done == 1 and trainer.state is not None
    with pytest.raises(UserError, match="there is no folder /no/such"):
        Trainer(config, plan, workdir.parent / "another", resume=False)
    gin.clear_config()
