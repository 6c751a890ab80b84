"""Features of encoder layers in the backbone's first blocks: transformers' Qwen3-VL, and encoders cut at their taps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.modules.projectors import MLPProjectorConfig
from mmjax.generation.kv_cache import CachedBackbone
from mmjax.models.model import model_modules, run_module
from mmjax.models.structure.parameters import abstract_module_parameters, init_module_parameters
from mmjax.weights.published.decoders.shared.llama_like import decoder_rules
from mmjax.weights.published.rules import match_rules, with_first_layers
from sharding.trees import get_leaf, set_leaf
from tests.mmjax.weights.published.parity import randomise_weights

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig  # noqa: E402
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel  # noqa: E402

VISION = VisionConfig(
    width=8,
    depth=4,
    heads=2,
    ffn=12,
    patch=2,
    merge=2,
    deepstack_layers=(0, 2),
    projector=MLPProjectorConfig(activation="gelu"),
    deepstack_projector=MLPProjectorConfig(norm=True),
)
BACKBONE = BackboneConfig(
    vocabulary=24,
    width=64,
    depth=4,
    heads=4,
    kv_heads=2,
    ffn=48,
    qk_norm="head",
    norm_epsilon=1e-6,
    rope_sections=(3, 3, 2),
    rope_interleaved=True,
)
MODEL = ModelConfig((VISION,), BACKBONE, ())
LENGTH, PLACES = 9, np.arange(1, 5)  # tokens, and where the picture's 2 x 2 cells stand


def picture():
    random = np.random.default_rng(0)
    positions = np.stack(np.divmod(np.arange(16), 4), axis=-1)
    return {
        "patches": jnp.asarray(random.uniform(-1, 1, (1, 16, VISION.patch_width)), jnp.float32),
        "segments": jnp.ones((1, 16), jnp.int32),
        "positions": jnp.asarray(positions[None], jnp.int32),
    }


def text(length: int = LENGTH):
    tokens = np.random.default_rng(1).integers(0, 24, (1, LENGTH))
    index = np.full((1, LENGTH), -1)
    index[0, PLACES] = range(4)
    positions = np.arange(LENGTH)[None, :, None].repeat(3, axis=2)
    positions[0, PLACES] = [[1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2]]
    positions[0, 5:] = np.arange(3, 7)[:, None]
    inside = np.arange(LENGTH) < length
    columns = {"tokens": tokens, "segments": inside[None], "branches": 0 * tokens, "vision_index": index}
    columns = {name: jnp.asarray(column, jnp.int32) for name, column in columns.items()}
    return columns | {"positions": jnp.asarray(positions * inside[None, :, None], jnp.int32)}


@pytest.fixture(scope="module")
def published():
    """transformers' decoder with random weights."""
    rope = {
        "rope_theta": 10000.0, "rope_type": "default", "mrope_section": [3, 3, 2], "mrope_interleaved": True,
    }  # fmt: skip
    config = Qwen3VLTextConfig(
        vocab_size=24, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, intermediate_size=48, rms_norm_eps=1e-6, rope_parameters=rope,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return randomise_weights(Qwen3VLTextModel(config))


@pytest.fixture(scope="module")
def parameters(published):
    """The published decoder's weights behind a random encoder."""
    vision, backbone = model_modules(MODEL)
    rules = decoder_rules(BACKBONE)["backbone"]
    tree = abstract_module_parameters(backbone)
    flat = jax.tree_util.tree_flatten_with_path({"backbone": tree})[0]
    shapes = {"/".join(key.key for key in path): leaf.shape for path, leaf in flat}
    tensors = {f"model.{name}": tensor.numpy() for name, tensor in published.state_dict().items()}
    tensors["lm_head.weight"] = np.zeros((24, 64), np.float32)
    loaded = {}
    for match in match_rules({"backbone": with_first_layers(rules, "blocks", ("early_0", "early_1"))}, shapes):
        values = match.layout.to_parameters(tuple(tensors[name] for name in match.tensor_names), match.parameter_shapes)
        for path, value in zip(match.parameter_paths, values, strict=True):
            loaded = set_leaf(loaded, path, jnp.asarray(value))
    random = jax.tree.map(lambda leaf: jnp.asarray(leaf) * 3 + 0.01, init_module_parameters(0, vision))
    return {"vision": random, "backbone": loaded["backbone"]}


def see(parameters):
    return run_module(model_modules(MODEL)[0], parameters["vision"], {}, picture()).activations["backbone"]


def test_hidden_states_are_transformers(published, parameters):
    seen = see(parameters)
    assert seen.shape == (1, 4, 3 * 64)
    batch = text()
    with torch.no_grad():
        embeds = published.embed_tokens(torch.from_numpy(np.asarray(batch["tokens"], np.int64)))
        parts = torch.from_numpy(np.array(seen[0])).split(64, dim=-1)
        embeds[0, PLACES] = parts[0]
        expected = published(
            inputs_embeds=embeds,
            position_ids=torch.from_numpy(np.asarray(batch["positions"], np.int64)).permute(2, 0, 1),
            visual_pos_masks=batch_mask(),
            deepstack_visual_embeds=list(parts[1:]),
            use_cache=False,
        ).last_hidden_state.numpy()
    backbone = CachedBackbone(MODEL, model_modules(MODEL))
    _, hidden = backbone.prefill(parameters, {"vision": picture(), "backbone": batch}, jnp.array([LENGTH]))
    assert np.linalg.norm(hidden - expected) <= 1e-5 * np.linalg.norm(expected)
    without = published(inputs_embeds=embeds, use_cache=False).last_hidden_state.detach().numpy()
    assert np.linalg.norm(without - expected) > 0.01 * np.linalg.norm(expected)


def batch_mask():
    mask = torch.zeros(1, LENGTH, dtype=torch.bool)
    mask[0, PLACES] = True
    return mask


def test_decoding_goes_on_behind_a_prompt_with_features(parameters):
    backbone = CachedBackbone(MODEL, model_modules(MODEL))
    whole, _ = backbone.prefill(parameters, {"vision": picture(), "backbone": text()}, jnp.array([LENGTH]))
    state, _ = backbone.prefill(parameters, {"vision": picture(), "backbone": text(6)}, jnp.array([6]))
    for place in range(6, LENGTH):
        state, _ = backbone.decode(parameters, state, text()["tokens"][:, place])
    assert len(state.caches) == BACKBONE.depth
    for by_step, at_once in zip(state.caches, whole.caches, strict=True):
        for cached, expected in zip(by_step, at_once, strict=True):  # keys, and values
            np.testing.assert_allclose(cached, expected, rtol=1e-4, atol=1e-4)


def test_taps_are_the_outputs_of_encoders_that_end_there(parameters):
    """Each through its own projector: the encoder cut behind the layer, with that projector in place of the last."""
    seen = jnp.split(see(parameters), 3, axis=-1)
    tree = parameters["vision"]
    for part, (depth, projector) in enumerate([(4, "last"), (1, "0"), (3, "1")]):
        config = VISION.deepstack_projector if part else VISION.projector
        cut = dataclasses.replace(
            VISION, depth=depth, deepstack_layers=(), projector=config, final_norm=VISION.final_norm and not part
        )
        module = model_modules(dataclasses.replace(MODEL, encoders=(cut,)))[0]
        weights = tree["projector"]["000"]["taps"][projector] if part else get_leaf(tree, "projector/000/last")
        alone = run_module(module, tree | {"projector": {"000": weights}}, {}, picture()).activations["backbone"]
        np.testing.assert_allclose(seen[part], alone, rtol=1e-5, atol=1e-6)


def test_layers_and_depths_that_do_not_fit_are_refused():
    for layers in ((2, 1), (4,), (-1,)):
        with pytest.raises(ValueError, match="must be in order and lie between 0 and 3"):
            dataclasses.replace(VISION, deepstack_layers=layers)
    with pytest.raises(ValueError, match="the first 2 blocks of backbone take features"):
        ModelConfig((VISION,), dataclasses.replace(BACKBONE, depth=2), ())
