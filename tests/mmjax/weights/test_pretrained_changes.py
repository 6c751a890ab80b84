"""More rows of the vocabulary and other rotary bases than published weights have, where a run names them."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from configs.common.errors import UserError
from data.datasets.easy_vqa import EasyVQA
from mmjax.models.model import model_modules
from mmjax.training.config import TrainConfig
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.weights import initialization
from mmjax.weights.compatibility import IncompatibleCheckpointError, compatible_matches
from mmjax.weights.export import export_checkpoint, export_target_like
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published_checkpoint import open_checkpoint
from mmjax.weights.registry import read_architecture
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.mmjax.weights.llama_checkpoint import BACKBONE, bits, model, random_tensors, write_llama
from tests.mmjax.weights.published.small_checkpoints import DECODERS, TEXT, VISION, WHOLE
from tests.mmjax.weights.zero_checkpoint import write_zeros
from tests.tiny_model import tiny_batch

CHANGES = ("vocabulary", "rope_base")
LARGER = dataclasses.replace(BACKBONE, vocabulary=29, rope_base=5e5)
NEW_KEYS = {"vocab_size": 29, "rope_theta": 5e5}
PIXTRAL = WHOLE["pixtral"][1]
MISTRAL = PIXTRAL["text_config"]
TABLES = {"embed": "model.embed_tokens.weight", "head": "lm_head.weight"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("llama") / "llama", random_tensors())


def values_of(folder, ours=LARGER):
    return parameter_initializer(model(ours), 3, (("backbone", str(folder)),), CHANGES)


def pieces_of(config):
    (module,) = model_modules(config)
    return module, {piece.name: piece for piece in module.pieces}


def with_mean_rows(table, rows):
    """What transformers' `resize_token_embeddings` makes, but for its noise."""
    table = table.astype(np.float32)
    mean = table.mean(axis=0, dtype=np.float64).astype(np.float32)
    return np.concatenate([table, np.broadcast_to(mean, (rows, table.shape[1]))])


@pytest.mark.parametrize("piece", TABLES)
def test_new_rows_are_the_mean_of_the_published_ones(folder, monkeypatch, piece):
    monkeypatch.setattr(initialization, "ROWS_OF_MEAN", 7)  # the mean is of several reads
    expected = with_mean_rows(random_tensors()[TABLES[piece]], 5)
    module, pieces = pieces_of(model(LARGER))
    table = values_of(folder).init_layer(module, pieces[piece], 0)["embedding"]
    assert table.shape == (29, 16)
    np.testing.assert_array_equal(table, expected)


@pytest.mark.parametrize(("rows", "spec"), [(6, P("x", "y")), (6, P(None, ("x", "y"))), (24, P(("y", "x"), None))])
def test_slices_with_new_rows_are_those_of_the_whole_table(folder, rows, spec):
    """Devices with published rows, with new ones, and with both."""
    ours = dataclasses.replace(LARGER, vocabulary=24 + rows)
    module, pieces = pieces_of(model(ours))
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    sharding = NamedSharding(mesh, spec)
    table = values_of(folder, ours).init_layer(module, pieces["embed"], 0, {"embedding": sharding})["embedding"]
    np.testing.assert_array_equal(table, with_mean_rows(random_tensors()[TABLES["embed"]], rows))


def test_differences_that_a_run_does_not_name_are_refused_and_say_how_to_name_them(folder):
    checkpoint = open_checkpoint(folder)
    with pytest.raises(
        IncompatibleCheckpointError,
        match=r"vocab_size is 24 in the checkpoint and 29 in the model; if this is meant, name vocabulary, rope_base "
        r"in TrainConfig\.pretrained_changes; 3 more are listed",
    ):
        compatible_matches(checkpoint, model(LARGER), "backbone")
    with pytest.raises(
        IncompatibleCheckpointError, match="rope_theta is 10000.0 .* 500000.0 in the model; if this is meant, name rope"
    ) as error:
        compatible_matches(checkpoint, model(LARGER), "backbone", ("vocabulary",))
    assert len(error.value.problems) == 1
    deeper = dataclasses.replace(LARGER, norm_epsilon=1e-6)
    with pytest.raises(IncompatibleCheckpointError, match="rms_norm_eps is 1e-05 in the checkpoint and 1e-06") as error:
        compatible_matches(checkpoint, model(deeper), "backbone", CHANGES)
    assert len(error.value.problems) == 1


def test_fewer_rows_than_published_are_refused(folder):
    fewer = model(dataclasses.replace(BACKBONE, vocabulary=23))
    with pytest.raises(IncompatibleCheckpointError, match="24 rows in the checkpoint and 23 in the model; rows can"):
        compatible_matches(open_checkpoint(folder), fewer, "backbone", CHANGES)


def test_a_field_that_no_run_may_change_is_refused():
    with pytest.raises(UserError, match="names depth; what may differ .* is vocabulary, rope_base, local_rope_base"):
        TrainConfig(dataset=EasyVQA, pretrained_changes=("depth",))


def test_a_run_with_more_rows_starts_on_tensor_ranks_and_is_exported_with_all_rows(folder, tmp_path):
    """29 rows, which two tensor ranks do not divide."""
    ours = model(LARGER)
    unit = UnitPlan("backbone", ("backbone",), (0, 1), layers=(2,), parallelism=Parallelism(tp=2))
    engine = Engine(ours, Plan((unit,)), tiny_batch(ours), EngineSettings(steps=4, seed=3))
    (masters,) = engine.initial_state(values_of(folder)).master_weights.values()

    def read(module: str, piece: str, layer: str):
        return jax.tree.map(np.asarray, masters[f"{module}/{piece}"][layer])

    original = open_checkpoint(folder)
    export_checkpoint(export_target_like(original, ours, "backbone", "float32"), read, tmp_path / "out", 10**9)
    written = open_checkpoint(tmp_path / "out")
    assert written.config == LARGER and written.config_json == {
        **original.config_json,
        **NEW_KEYS,
        "torch_dtype": "float32",
    }
    for name, tensor in random_tensors().items():
        expected = with_mean_rows(tensor, 5) if name in TABLES.values() else tensor.astype(np.float32)
        assert bits(written.folder.read(name)) == bits(expected), name


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA = {"model_type": "llama", **TEXT}


@pytest.mark.parametrize(
    ("rotary", "expected"),
    [
        pytest.param({}, {"rope_theta": 5e5}, id="the default, unsaid"),
        pytest.param({"rope_theta": 1e4, "rope_scaling": None}, {"rope_theta": 5e5, "rope_scaling": None}, id="v4"),
        pytest.param(
            {"rope_parameters": {"rope_theta": 1e4, **YARN}},
            {"rope_parameters": {"rope_theta": 5e5, **YARN}},
            id="v5, scaled",
        ),
    ],
)
def test_the_base_is_written_where_the_original_has_it(tmp_path, rotary, expected):
    original = write_zeros(tmp_path / "a", {**LLAMA, **rotary})
    ours = dataclasses.replace(original.config, rope_base=5e5)
    target = export_target_like(original, model(ours), "backbone")
    assert target.config_json == {**LLAMA, **expected}
    assert read_architecture(target.config_json)[1] == ours


@pytest.mark.parametrize("family", DECODERS)
def test_every_decoder_is_exported_with_its_new_rows_and_bases(tmp_path, family):
    original = write_zeros(tmp_path / "a", {"model_type": family, **DECODERS[family][1]})
    config = original.config
    local = {"local_rope_base": 3e4} if config.local_rope_base else {}
    ours = dataclasses.replace(config, vocabulary=config.vocabulary + 5, rope_base=7e5, **local)
    target = export_target_like(original, model(ours), "backbone")
    assert read_architecture(target.config_json)[1] == ours
    assert compatible_matches(original, model(ours), "backbone", ("vocabulary", "rope_base", *local))


def test_the_text_of_a_whole_model_is_changed_and_its_encoder_stays(tmp_path):
    """A base of the same value is the encoder's own."""
    vision = {"model_type": "pixtral", **VISION, "rope_theta": 1e4}
    config_json = {
        "model_type": "llava",
        **PIXTRAL,
        "vision_config": vision,
        "text_config": {**MISTRAL, "rope_theta": 1e4},
    }
    original = write_zeros(tmp_path / "a", config_json)
    backbone = dataclasses.replace(original.config.backbone, vocabulary=280, rope_base=5e5)
    target = export_target_like(original, dataclasses.replace(original.config, backbone=backbone), "model")
    text = {**MISTRAL, "vocab_size": 280, "rope_theta": 5e5}
    assert target.config_json == {**config_json, "text_config": text}
