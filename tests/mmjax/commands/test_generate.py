"""`python -m mmjax.generate`, on a model that `python -m mmjax.train` has just made, both as a user starts them."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import easy_vqa
import jax
import numpy as np
import pytest
from PIL import Image

import mmjax
from configs.architectures import BackboneConfig, ModelConfig, UNetConfig, VisionConfig
from configs.common.errors import UserError
from data.data_config import DataConfig
from data.datasets.easy_vqa import text_sample, vqa_sample
from data.media.images import read_image
from data.packing.global_batch import GlobalBatch, build_global_batch
from data.packing.rows.packed_rows import pack_samples
from data.records import Media
from data.samples.image_format import image_item
from data.samples.sample_format import SampleFormat
from data.text.word_tokenizer import EOS, WordTokenizer
from mmjax.generation.image_generation import ImageGenerator
from mmjax.generation.sampling import Sampling
from mmjax.generation.trained_model import FEW_IMAGES, Prompt, TrainedModel, load_trained_model
from mmjax.models.model import model_modules, run_model
from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.config import TrainConfig
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.engine.stage_layouts import trees_by_module
from mmjax.training.evaluation import count_answers
from sharding.plans.plan import single_device_plan
from sharding.specs.modules import module_graph
from tests.clips import clip_file
from tests.commands import call_command
from tests.small_vqa import SmallVQA

pytestmark = pytest.mark.processes

MODEL = ModelConfig(
    (VisionConfig(width=16, depth=1, heads=2, ffn=32),),
    BackboneConfig(vocabulary=48, width=16, depth=1, heads=4, kv_heads=2, ffn=32, tie_embeddings=True),
    (UNetConfig(image_size=8, widths=(8,), head_width=4, groups=4, conditions=2, condition_width=8),),
)
DATA = DataConfig(rows=4, tokens=192, patches=64, images=2)

GIN = """
from __gin__ import dynamic_registration
from configs import architectures
from data import data_config
from mmjax.training import config
from configs import optimizer
from tests import small_vqa

architectures.ModelConfig:
  encoders = (@architectures.VisionConfig(),)
  backbone = @architectures.BackboneConfig()
  generators = (@architectures.UNetConfig(),)
optimizer.OptimizerConfig:
  learning_rate = 1e-2
  warmup_steps = 1
small_vqa.SmallVQA.images = 8
config.TrainConfig:
  dataset = @small_vqa.SmallVQA
  model = @architectures.ModelConfig()
  data = @data_config.DataConfig()
  optimizer = @optimizer.OptimizerConfig()
  plan = "plan.json"
  steps = 30
  sample_questions = 0
  sample_images = 0
""" + "".join(
    f"{module}.{type(config).__name__}.{field.name} = {getattr(config, field.name)!r}\n"
    for module, config in (
        *(("architectures", part) for part in (*MODEL.encoders, MODEL.backbone, *MODEL.generators)),
        ("data_config", DATA),
    )
    for field in dataclasses.fields(config)
    if getattr(config, field.name) != field.default
)

PLAN = """{"microbatches": 1, "schedule": "1f1b", "units": [
 {"name": "all", "modules": ["vision", "backbone", "generator"], "devices": "0-1", "parallelism": {"dp": 2}, "layers":
 [3],
  "recompute": ["none"]}]}"""

PICTURE = easy_vqa.get_test_image_paths()[0]
QUESTION = "what color is the shape?"
SHOWN = Media.from_file(PICTURE)


def python(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    home = pathlib.Path(__file__).resolve().parents[3]
    environment = os.environ | {"PYTHONPATH": str(home)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def generate(workdir: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    """The command, called in this process."""
    return call_command("generate", f"--workdir={workdir.name}", *arguments, folder=workdir.parent)


def refusal(done: subprocess.CompletedProcess) -> str:
    """The message of a run that was refused with exit status 2."""
    assert done.returncode == 2 and done.stderr.startswith("error: "), done.stderr
    assert "Traceback" not in done.stderr and not done.stdout
    return done.stderr


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("generate")
    (folder / "run.gin").write_text(GIN)
    (folder / "plan.json").write_text(PLAN)
    done = python(folder, "mmjax.train", "--gin_file=run.gin", "--workdir=run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def trained(workdir) -> TrainedModel:
    return load_trained_model(workdir, TrainConfig(dataset=SmallVQA, model=MODEL, data=DATA))


@pytest.fixture(scope="module")
def masters(workdir) -> dict:
    """The parameters that a training run on one device restores."""
    form = SampleFormat.for_model(MODEL, DATA.encoder_capacities)
    empty = build_global_batch(pack_samples([], 1, DATA.capacity, form), MODEL, form)
    engine = Engine(MODEL, single_device_plan(module_graph(MODEL)), empty.arrays, EngineSettings())
    state, _, step = CheckpointManager(workdir / "checkpoints", MODEL).restore(engine)
    assert step == 30
    return trees_by_module(state.master_weights)


def test_loaded_parameters_equal_those_of_a_resumed_run(workdir, trained, masters):
    mine, theirs = (jax.tree_util.tree_leaves_with_path(tree) for tree in (trained.parameters, masters))
    config = TrainConfig(dataset=SmallVQA, model=MODEL, data=DATA)
    with pytest.raises(UserError, match=r"has no checkpoint of step 29; it has checkpoints of \[.*30\]"):
        load_trained_model(workdir, config, 29)
    assert trained.step == 30 and len(mine) == len(theirs) > 30
    for (path, value), (there, expected) in zip(sorted(mine, key=str_path), sorted(theirs, key=str_path), strict=True):
        assert path == there and value.devices() == {jax.devices()[0]}
        np.testing.assert_array_equal(value, expected)


def str_path(leaf) -> str:
    return jax.tree_util.keystr(leaf[0])


def count_correct(masters, tokenizer: WordTokenizer, sample) -> tuple[int, int]:
    """(questions whose every word is the argmax of the whole model, questions) of one sample, by teacher forcing."""
    form = SampleFormat.for_model(MODEL, DATA.encoder_capacities)
    batch: GlobalBatch = build_global_batch(pack_samples([sample.load(0)], 1, DATA.capacity, form), MODEL, form)
    arrays = {
        name: {**module_arrays, "seed_and_step": np.zeros(2, np.int32)} for name, module_arrays in batch.arrays.items()
    }
    correct = jax.jit(lambda p, a: run_model(model_modules(MODEL), p, a)["backbone"].auxiliary_metrics["correct"])(
        masters, arrays
    )
    score = count_answers(batch.arrays["backbone"], np.asarray(correct), np.ones(1, bool))
    return score.correct, score.questions


@pytest.mark.parametrize("question", [QUESTION, "is there a blue circle?", "what is the red shape?"])
def test_answers_are_the_most_likely_words_and_end(trained, masters, question):
    """Evaluated like held-out accuracy: in the training layout every word is the argmax of the whole model."""
    image, form = read_image(Media.from_file(PICTURE)), SampleFormat.for_model(MODEL, DATA.encoder_capacities)
    picture = image_item(lambda: image, image.shape[:2], form.encoder_formats["patches"])
    seen, told = trained.answer(question, {"image": [SHOWN]}), trained.answer(question)
    assert seen.ended and told.ended
    sample = vqa_sample(picture, [(question, seen.text)], trained.tokenizer, form)
    assert count_correct(masters, trained.tokenizer, sample) == (1, 1)
    assert count_correct(masters, trained.tokenizer, text_sample(question, told.text, trained.tokenizer, form)) == (
        1,
        1,
    )


def test_a_wrong_answer_is_not_the_most_likely(trained, masters):
    form = SampleFormat.for_model(MODEL, DATA.encoder_capacities)
    said = trained.answer(QUESTION).text
    other = next(word for word in ("teal", "no", "triangle") if word != said)
    sample = text_sample(QUESTION, other, trained.tokenizer, form)
    assert count_correct(masters, trained.tokenizer, sample) == (0, 1)


def test_the_command_prints_the_answer_alone(workdir, trained):
    asked = (f"--workdir={workdir.name}", f"--image={PICTURE}", f"--prompt={QUESTION}")
    done = python(workdir.parent, "mmjax.generate", *asked)
    assert done.returncode == 0, done.stderr
    assert done.stdout == trained.answer(QUESTION, {"image": [SHOWN]}).text + "\n"
    assert "warning" not in done.stderr


def test_many_requests_are_answered_in_order_a_line_each(workdir, trained):
    asked = [
        {"prompt": f"<image>{QUESTION}", "image": [PICTURE]},
        {"prompt": "a blue circle", "output": "many.png", "seed": 3},
        {"prompt": "is there a blue circle?"},
        {"prompt": f"<video>{QUESTION}", "video": "clip.mp4"},
    ]
    (workdir.parent / "clip.mp4").write_bytes(clip_file())
    (workdir.parent / "asked.jsonl").write_text("".join(json.dumps(request) + "\n" for request in asked))
    done = generate(workdir, "--requests=asked.jsonl", "--sampling_steps=3", "--guidance=2")
    assert done.returncode == 0, done.stderr
    assert "warning: --guidance needs GeneratorConfig.condition_dropout" in done.stderr
    first, drawn, second, last = map(json.loads, done.stdout.splitlines())
    assert first["answer"] == trained.answer(QUESTION, {"image": [SHOWN]}).text and first["ended"]
    assert drawn == {"prompt": "a blue circle", "output": "many.png"} and (workdir.parent / "many.png").is_file()
    assert second["answer"] == trained.answer("is there a blue circle?").text
    clip = Media("a clip", content=clip_file())
    assert last["answer"] == trained.answer(QUESTION, {"video": [clip]}).text


def test_sampled_tokens_depend_on_the_seed(trained):
    prompts = [Prompt("what is it", seed=seed) for seed in (1, 1, 2, 3, 4)]
    said = [answer.text for answer in trained.answers(prompts, Sampling(8.0), 12)]
    assert said[0] == said[1] and len(set(said)) > 2


def test_questions_without_an_image_are_answered_and_unknown_words_named(workdir, trained):
    done = generate(workdir, "--prompt=What colour is the zebra?")
    assert done.returncode == 0 and done.stdout == trained.answer("what colour is the zebra?").text + "\n"
    assert 'does not have "colour", "zebra"; read' in done.stderr and done.stderr.startswith("warning: ")


def test_the_command_generates_the_same_image_as_the_library(workdir, trained):
    options = ("--prompt=a blue circle", "--sampling_steps=5", "--seed=3", "--output=blue.png")
    done = generate(workdir, *options)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert done.stderr.startswith("warning: the generator has trained on at most 240 images in 30 steps")
    with Image.open(workdir.parent / "blue.png") as picture:
        assert picture.size == (8, 8) and picture.mode == "RGB"
        pixels = np.asarray(picture)
    (drawn,) = ImageGenerator(trained).generate(["a blue circle"], [3], 5)
    np.testing.assert_allclose(pixels / 127.5 - 1, drawn, atol=0.51 / 127.5 + 1e-4)


def test_a_program_is_warned_of_a_generator_that_was_hardly_trained(trained):
    with pytest.warns(UserWarning, match="at most 240 images in 30 steps; even small pictures are noise below"):
        picture = mmjax.draw(trained, "a blue circle", sampling_steps=2)
    assert picture.size == (8, 8)
    enough = dataclasses.replace(trained, generator_images=FEW_IMAGES)
    assert not enough.drawing_warning
    mmjax.draw(enough, "a blue circle", sampling_steps=2)  # pytest turns a warning into an error


@pytest.mark.parametrize(("part", "images"), [("generator", None), ("model", None), ("backbone", 240)])
def test_published_weights_of_a_generator_count_as_trained(workdir, part, images):
    config = TrainConfig(dataset=SmallVQA, model=MODEL, data=DATA, pretrained_weights=((part, "folder"),))
    assert load_trained_model(workdir, config).generator_images == images


def test_an_image_depends_on_its_own_description_and_seed_alone(trained):
    descriptions = ["a red circle", "a blue circle", "a red circle", "a teal rectangle", "a red circle"]
    together = ImageGenerator(trained).generate(descriptions, [1, 1, 1, 7, 2], 4)
    assert together.shape == (5, 8, 8, 3) and np.isfinite(together).all() and np.abs(together).max() <= 1 + 1e-6
    np.testing.assert_array_equal(together[0], together[2])
    assert np.abs(together[0] - together[1]).max() > 1e-4  # the words count
    assert np.abs(together[0] - together[4]).max() > 1e-2  # the seed counts
    alone = ImageGenerator(trained).generate(["a teal rectangle"], [7], 4)
    np.testing.assert_allclose(alone[0], together[3], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--image=nowhere.png", f"--prompt={QUESTION}"), "nowhere.png"),
        (("--image=plan.json", f"--prompt={QUESTION}"), "plan.json: no complete header"),
        (("--video=plan.json", f"--prompt={QUESTION}"), "plan.json: Invalid data"),
        (("--prompt= ",), "--prompt is missing"),
        (("--prompt=a circle", "--gin_file=tiny.gin"), "there is no flag --gin_file"),
        (("--image=a.png", "--prompt=a circle", "--output=b.png"), "make two requests for both"),
        (("--prompt=what?", f"--item=windows={PICTURE}"), "the model has no encoder of windows"),
        (("--prompt=a circle", "--output=picture.circle"), "suffix '.circle'"),
        (("--prompt=a circle", "--output=nowhere/b.png"), "no folder nowhere"),
    ],
)
def test_invalid_requests_are_refused(workdir, arguments, words):
    assert words in refusal(generate(workdir, *arguments))


def test_a_folder_that_is_no_workdir_is_refused(workdir):
    empty = workdir.parent / "empty"
    assert "is no folder" in refusal(generate(empty, "--prompt=a circle"))
    empty.mkdir()
    assert "has no operative.gin" in refusal(generate(empty, "--prompt=a circle"))
    (empty / "operative.gin").write_text((workdir / "operative.gin").read_text())
    assert "holds no checkpoint" in refusal(generate(empty, "--prompt=a circle"))


@pytest.mark.parametrize("image", [None, PICTURE])
def test_a_prompt_longer_than_the_row_is_refused(trained, image):
    shown = {"image": [Media.from_file(image)] if image else []}
    with pytest.raises(UserError, match="holds 192 .* shorten the prompt"):
        trained.answer("blue " * 200, shown)
    with pytest.raises(UserError, match="shorten the prompt"):
        ImageGenerator(trained).generate(["blue " * 200], [0], 1)


def test_an_answer_without_an_end_is_cut_off_at_the_end_of_the_row(trained):
    """With an end token that is never sampled, the answer has as many words as the row has room for."""
    head = trained.parameters["backbone"]["embed"]["000"]
    endless = {**head, "embedding": head["embedding"].at[EOS].set(0.0)}
    below = trained.parameters["backbone"] | {"embed": {"000": endless}}
    capacity = dataclasses.replace(trained.capacity, tokens=12)
    model = dataclasses.replace(trained, parameters=trained.parameters | {"backbone": below}, capacity=capacity)
    answer = model.answer("what is it")
    assert not answer.ended and len(answer.text.split()) == 12 - 5 + 1  # the prompt takes 5, the last word no place


def test_a_vocabulary_that_is_missing_or_of_another_model_is_refused(workdir, tmp_path, trained):
    (tmp_path / "checkpoints").symlink_to(workdir / "checkpoints")
    with pytest.raises(UserError, match="tokenizer.json"):
        load_trained_model(tmp_path, TrainConfig(dataset=SmallVQA, model=MODEL, data=DATA))
    words = tuple(f"word{number}" for number in range(60))
    with pytest.raises(UserError, match="67 ids"):
        dataclasses.replace(trained, tokenizer=WordTokenizer(words))
