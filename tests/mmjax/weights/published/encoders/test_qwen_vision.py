"""Small random vision towers of Qwen's models: hidden states and merged tokens, export after import, configurations."""

import dataclasses
import functools
import importlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig
from mmjax.models.model import model_modules, run_module
from mmjax.weights import registry
from mmjax.weights.published.encoders.shared.qwen_towers import MERGER_NAMES, QWEN3_MERGER_NAMES, merger_rules
from mmjax.weights.published.rules import match_rules
from mmjax.weights.published_checkpoint import as_model, open_checkpoint, parameter_shapes
from sharding.trees import set_leaf
from tests.mmjax.weights.published.encoders.vision_parity import hidden_states, packed, picture
from tests.mmjax.weights.published.parity import (
    assert_close,
    assert_names_and_shapes,
    export_parameters,
    import_parameters,
    randomise_weights,
    same_tensors,
    single_threaded_torch,
)

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

OUT = 20
COMMON = {"depth": 3, "num_heads": 2, "patch_size": 4}
# (module, class, its configuration, fields of it)
CASES = {
    "qwen2_vl": (
        "qwen2_vl",
        "Qwen2VisionTransformerPretrainedModel",
        "Qwen2VLVisionConfig",
        {**COMMON, "embed_dim": 24, "hidden_size": OUT, "mlp_ratio": 2},
    ),
    "qwen2_5_vl": (
        "qwen2_5_vl",
        "Qwen2_5_VisionTransformerPretrainedModel",
        "Qwen2_5_VLVisionConfig",
        {
            **COMMON,
            "hidden_size": 24,
            "out_hidden_size": OUT,
            "intermediate_size": 36,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
    ),
}
CASES["qwen2_5_omni"] = (
    "qwen2_5_omni",
    "Qwen2_5OmniVisionEncoder",
    "Qwen2_5OmniVisionEncoderConfig",
    CASES["qwen2_5_vl"][3],
)
CASES["qwen3_vl"] = (
    "qwen3_vl",
    "Qwen3VLVisionModel",
    "Qwen3VLVisionConfig",
    {
        **COMMON,
        "hidden_size": 24,
        "out_hidden_size": OUT,
        "intermediate_size": 36,
        "num_position_embeddings": 25,
        "deepstack_visual_indexes": [0, 2],
    },
)
SIZES = ((24, 40), (16, 16), (8, 56))  # in pixels; windows are of 16


@dataclasses.dataclass(frozen=True)
class Case:
    """A tower of transformers, and the encoder read from its folder."""

    kind: str
    theirs: object
    folder: object

    @property
    def config(self):
        return open_checkpoint(self.folder).config

    @property
    def merger(self):
        return QWEN3_MERGER_NAMES if self.kind == "qwen3_vl" else MERGER_NAMES

    @property
    def parameters(self):
        model = as_model(self.config)
        return import_parameters(self.folder, model, "vision", (model_modules(model)[0],))

    def published_output(self, arrays, image):
        """What the tower gives for an image of a packed row."""
        torch = single_threaded_torch()
        own = arrays["segments"][0] == image
        rows, columns = arrays["positions"][0][own].max(axis=0) + 1
        given = torch.from_numpy(published_patches(self.config, arrays["patches"][0][own]))
        with torch.no_grad():
            return self.theirs(given, grid_thw=torch.tensor([[1, rows, columns]]))


def published_patches(config, patches):
    """Normalised patches [p, c t h w] of transformers, from patches [p, t h w c] with pixels in [-1, 1]."""
    shape = (-1, config.temporal_patch, config.patch, config.patch, config.channels)
    normalised = (patches.reshape(shape) - np.float32(config.pixel_mean)) / np.float32(config.pixel_std)
    return np.ascontiguousarray(normalised.transpose(0, 4, 1, 2, 3)).reshape(len(patches), -1)


def transformers_class(kind, name):
    module, *_ = CASES[kind]
    part = "configuration" if name.endswith("Config") else "modeling"
    return getattr(importlib.import_module(f"transformers.models.{module}.{part}_{module}"), name)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Returns a function that gives the case of a name."""

    @functools.cache
    def make(kind):
        _, named, config, fields = CASES[kind]
        theirs = randomise_weights(transformers_class(kind, named)(transformers_class(kind, config)(**fields)))
        folder = tmp_path_factory.mktemp("towers") / "saved"
        theirs.save_pretrained(folder)
        return Case(kind, theirs, folder)

    return make


def window_order(case, arrays, image):
    """Order of transformers' last hidden states: patches of windows one after the other, where there are windows."""
    own = np.flatnonzero(arrays["segments"][0] == image)
    windows = case.config.windows
    if windows is None:
        return own
    rows, columns = (arrays["positions"][0][own] // windows.side).T
    return own[np.lexsort((columns, rows))]


@pytest.mark.parametrize("kind", CASES)
def test_hidden_states_of_packed_images_of_any_size_match_transformers(kind, cases):
    case = cases(kind)
    arrays = packed(case.config, *(picture(number, *size) for number, size in enumerate(SIZES)))
    # The final norm belongs to the merger there.
    last = model_modules(as_model(dataclasses.replace(case.config, final_norm=False)))[0]
    found = hidden_states(last, case.parameters["vision"], arrays)
    for image in range(1, len(SIZES) + 1):
        expected = case.published_output(arrays, image).last_hidden_state.numpy()
        assert_close(found[window_order(case, arrays, image)][:, : case.config.width], expected, tolerance=1e-5)


def model_of(case):
    """A model with the tower's projector."""
    backbone = BackboneConfig(width=OUT, heads=2, kv_heads=2, ffn=8, depth=4)
    return ModelConfig((case.config,), backbone, ())


def whole_matches(case):
    """The rules of the tower and its merger, applied."""
    published = open_checkpoint(case.folder).architecture
    rules = (*published.rules(case.config)["vision"], *merger_rules(case.config, case.merger))
    shapes = {path: shape for path, shape in parameter_shapes(model_of(case)).items() if path.startswith("vision/")}
    return match_rules({"vision": rules}, shapes)


@pytest.mark.parametrize("kind", CASES)
def test_tokens_of_packed_images_match_transformers(kind, cases):
    case = cases(kind)
    state = {name: tensor.numpy() for name, tensor in case.theirs.state_dict().items()}
    parameters = {}
    for match in whole_matches(case):
        tensors = tuple(state.pop(name) for name in match.tensor_names)
        values = match.layout.to_parameters(tensors, match.parameter_shapes)
        for again, tensor in zip(match.layout.to_published(values), tensors, strict=True):
            np.testing.assert_array_equal(again, tensor)
        for path, value in zip(match.parameter_paths, values, strict=True):
            parameters = set_leaf(parameters, path, jnp.asarray(value))
    assert not state
    arrays = packed(case.config, *(picture(number, *size) for number, size in enumerate(SIZES)))
    module = model_modules(model_of(case))[0]
    found = jax.jit(lambda parameters, batch: run_module(module, parameters, {}, batch).activations["backbone"])(
        parameters["vision"], jax.tree.map(jnp.asarray, arrays)
    )
    owners = arrays["segments"][0][:: case.config.positions_per_token]
    for image in range(1, len(SIZES) + 1):
        output = case.published_output(arrays, image)
        expected = np.concatenate([output.pooler_output, *getattr(output, "deepstack_features", ())], axis=-1)
        assert_close(np.asarray(found)[0][owners == image], expected, tolerance=1e-5)


@pytest.mark.parametrize("kind", CASES)
def test_names_and_shapes_of_published_size_match_transformers(kind):
    torch = single_threaded_torch()
    _, named, configured, _ = CASES[kind]
    published_width = {"hidden_size": 1280} if "2_5" in kind else {}  # the default is that of no checkpoint
    with torch.device("meta"):
        theirs = transformers_class(kind, named)(transformers_class(kind, configured)(**published_width))
    assert_names_and_shapes(theirs, "vision")


@pytest.mark.parametrize("kind", CASES)
def test_export_after_import_is_bit_identical(kind, cases, tmp_path):
    case = cases(kind)
    export_parameters(case.folder, as_model(case.config), "vision", case.parameters, tmp_path / "again")
    assert same_tensors(case.folder, tmp_path / "again")


@pytest.mark.parametrize("kind", CASES)
def test_a_written_config_reads_back_equal(kind, cases):
    case = cases(kind)
    published = open_checkpoint(case.folder).architecture
    values = registry.write_architecture(published, case.config)
    assert published.read_config(json.loads(json.dumps(values))) == case.config
    named = transformers_class(kind, CASES[kind][2]).from_dict(values)
    asked = {key for key in values if key not in ("architectures", "model_type")}
    assert {key: getattr(named, key) for key in asked} == {key: getattr(case.theirs.config, key) for key in asked}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_position_embeddings": 24}, "num_position_embeddings is 24"),
        ({"deepstack_visual_indexes": [2, 1]}, "deepst"),
    ],
)
def test_unsupported_values_of_qwen3_are_refused_by_key(changed, said):
    with pytest.raises(ValueError, match=said):
        registry.find_architecture("qwen3_vl_vision").read_config(changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
        ({"patch_size": [14, 16]}, r"patch_size is \[14, 16\]"),
        ({"window_size": 8}, "window_size is 8"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type is 'yarn'"),
    ],
)
def test_unsupported_values_are_refused_by_key(changed, said):
    with pytest.raises(ValueError, match=said):
        registry.find_architecture("qwen2_5_vl_vision").read_config(changed)


def test_a_tower_without_windows_is_written_with_full_attention_in_every_layer():
    published = registry.find_architecture("qwen2_5_vl_vision")
    config = published.read_config({"depth": 2, "hidden_size": 64, "fullatt_block_indexes": [0, 1]})
    assert config.windows is None
    assert published.write_config(config)["fullatt_block_indexes"] == [0, 1]
