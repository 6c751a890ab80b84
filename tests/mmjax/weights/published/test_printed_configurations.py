"""What `python -m mmjax.convert --print` prints of published checkpoints trains as it is, from their weights."""

import contextlib
import io
import json
import math
import pathlib

import gin
import numpy as np
import pytest
from PIL import Image

from data.packing.pipeline import training_batches
from mmjax import cli
from mmjax.commands import convert, train
from mmjax.training.config import TrainConfig
from mmjax.training.metrics.metrics_file import read_metrics
from tests.mmjax.weights.published.encoders.vision_parity import picture
from tests.mmjax.weights.published.small_checkpoints import DECODERS, TOWERS, VOCABULARY, WHOLE, save_small_model

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
soundfile = pytest.importorskip("soundfile")
pytest.importorskip("transformers")

BASE = """
from __gin__ import dynamic_registration
from configs import architectures
from data import data_config
from data.datasets import conversations
from data.sources import llava
from mmjax.training import config
include "conversations.gin"
config.TrainConfig:
  steps = 2
  log_interval = 1
  sample_questions = 0
conversations.Conversations.train = (("told", @llava.LlavaJson()),)
data_config.DataConfig:
  rows = 2
  tokens = 128
  patches = 0
"""
OF_TEXT_ALONE = """
from __gin__ import dynamic_registration
from configs import architectures
architectures.ModelConfig.encoders = ()
"""
CAPACITIES = {"image": ("patches", 128), "audio": ("frames", 64)}
SHOWN = {**dict.fromkeys([*TOWERS, *WHOLE], ("image",)), "qwen2_audio": ("audio",)} | {
    "qwen2_5_omni_thinker": ("image", "audio")
}
ANSWERS = ("A ship.", "A ship on the sea.", "Waves, as high as a house.", "It is a harbour at night, with its lights.")


def write_conversations(folder: pathlib.Path, shown: tuple[str, ...]) -> pathlib.Path:
    """A file of conversations, each about a picture or sound of its own, or both, or neither."""
    entries = []
    for number, answer in enumerate(ANSWERS):
        files = {"image": f"{number}.png", "audio": f"{number}.wav"}
        Image.fromarray(picture(number, 16, 16)).save(folder / files["image"])
        samples = np.random.default_rng(number).normal(size=1600).astype(np.float32) / 10
        soundfile.write(folder / files["audio"], samples, 16_000)
        asked = "".join(f"<{kind}>\n" for kind in shown) + "What is it?"
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": answer}]
        entries.append({**{kind: files[kind] for kind in shown}, "conversations": turns})
    (folder / "data.json").write_text(json.dumps(entries))
    return folder / "data.json"


@pytest.fixture
def trained(tmp_path):
    """Returns a function that trains a checkpoint as it is printed: the configuration, and the losses of two steps."""

    def run(folder: pathlib.Path, shown: tuple[str, ...]) -> tuple[TrainConfig, list[dict[str, float]]]:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            convert.COMMAND.prepare(convert.COMMAND.parse([f"--folder={folder}", "--print"]))()
        texts = (BASE, *(() if shown else (OF_TEXT_ALONE,)), printed.getvalue())
        files = [tmp_path / f"{number}.gin" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        data = f"--gin.LlavaJson.path='{write_conversations(tmp_path, shown)}'"
        sizes = [f"--gin.DataConfig.{name}={size}" for name, size in map(CAPACITIES.get, shown)]
        flags = [*(f"--gin_file={file}" for file in files), data, *sizes, f"--workdir={tmp_path / 'run'}"]
        with contextlib.redirect_stdout(io.StringIO()):
            assert train.COMMAND.prepare(train.COMMAND.parse(flags))() == 0
        return cli.configured(TrainConfig), read_metrics(tmp_path / "run")

    yield run
    gin.clear_config()


def published_loss(theirs, config: TrainConfig) -> float:
    """The loss of the first batch, by the logits of each sample alone."""
    batches = training_batches(config.data, config.model, config.dataset("train"))
    try:
        arrays = next(batches).arrays["backbone"]
    finally:
        batches.close()
    loss = 0.0
    for row, segments in enumerate(arrays["segments"]):
        for sample in range(1, segments.max() + 1):
            tokens, targets, weights = (
                arrays[name][row][segments == sample] for name in ("tokens", "targets", "weights")
            )
            with torch.no_grad():
                log = theirs(input_ids=torch.from_numpy(tokens[None]).long()).logits[0].log_softmax(-1).numpy()
            loss -= float(weights @ log[np.arange(len(tokens)), targets])
    return loss


@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder_trains_from_the_loss_of_the_published_one(kind, trained, tmp_path):
    theirs = save_small_model(kind, tmp_path / "saved")
    config, (first, second) = trained(tmp_path / "saved", ())
    assert first["loss/backbone"] == pytest.approx(published_loss(theirs, config), rel=1e-5)
    assert second["loss/backbone"] < first["loss/backbone"]


@pytest.mark.parametrize("kind", SHOWN)
def test_a_tower_or_a_whole_model_trains_on_pictures_and_sounds(kind, trained, tmp_path):
    save_small_model(kind, tmp_path / "saved")
    config, (first, second) = trained(tmp_path / "saved", SHOWN[kind])
    assert [part for part, _ in config.pretrained_weights] == ["vision" if kind in TOWERS else "model"]
    assert first["loss/backbone"] == pytest.approx(math.log(VOCABULARY), abs=0.2)
    assert second["loss/backbone"] < first["loss/backbone"]
