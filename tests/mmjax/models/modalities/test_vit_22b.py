"""ViT-22B as its part in configs/ has it, small, against PyTorch written after its paper (arXiv 2302.05442, section 2).

No weights of it are published.
"""

import dataclasses

import gin
import jax
import numpy as np
import pytest

from configs.architectures import VisionConfig
from mmjax import cli
from mmjax.models.model import model_modules
from mmjax.models.structure.parameters import init_module_parameters
from mmjax.weights.published_checkpoint import as_model
from tests.mmjax.weights.published.encoders.vision_parity import hidden_states, packed, picture, raster
from tests.mmjax.weights.published.parity import single_threaded_torch

pytestmark = pytest.mark.parity

pytest.importorskip("torch")

HEADS, HEAD_WIDTH = 3, 4
SIZES = {"width": HEADS * HEAD_WIDTH, "depth": 2, "heads": HEADS, "ffn": 20, "patch": 4, "grid": 2}


def part(name):
    cli.parse_gin(("models/parts/vision.gin",))
    with gin.config_scope(name):
        return cli.configured(VisionConfig)


def normed(x, scale):
    """LayerNorm without bias and centring."""
    torch = single_threaded_torch()
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * scale


def block(x, parameters):
    """y' = LN(x); x + attention(y') + MLP(y'), with normed queries and keys; biases in the MLP alone."""
    torch = single_threaded_torch()
    attention = parameters["attention"]
    y = normed(x, parameters["attention_norm"]["scale"])
    query, key, value = (
        (y @ attention[name]["kernel"]).reshape(-1, HEADS, HEAD_WIDTH) for name in ("query", "key", "value")
    )
    query, key = normed(query, attention["query_norm"]["scale"]), normed(key, attention["key_norm"]["scale"])
    shares = torch.softmax(torch.einsum("qhe,khe->hqk", query, key) / HEAD_WIDTH**0.5, dim=-1)
    seen = torch.einsum("hqk,khe->qhe", shares, value).reshape(len(x), -1)
    hidden = torch.nn.functional.gelu(
        y @ parameters["mlp"]["up"]["kernel"] + parameters["mlp"]["up"]["bias"], approximate="tanh"
    )
    mlp = hidden @ parameters["mlp"]["down"]["kernel"] + parameters["mlp"]["down"]["bias"]
    return x + seen @ attention["output"]["kernel"] + mlp


def reference(pixels, tree):
    """Of uint8[8, 8, 3] pixels: the last norm's outputs, in raster order."""
    torch = single_threaded_torch()
    tree = jax.tree.map(lambda array: torch.from_numpy(np.ascontiguousarray(array)), tree)
    unit = torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1)
    patches = unit.reshape(2, 4, 2, 4, 3).permute(0, 2, 1, 3, 4).reshape(4, -1)
    embed = tree["embed"]["000"]
    x = patches @ embed["pixels"]["kernel"] + embed["pixels"]["bias"]
    x = x + embed["table"]["table"].reshape(4, -1)
    for layer in range(SIZES["depth"]):
        x = block(x, tree["blocks"][f"{layer:03d}"])
    return normed(x, tree["norm"]["000"]["norm"]["scale"]).numpy()


def test_blocks_match_the_paper_in_pytorch():
    config = dataclasses.replace(part("vit_22b"), **SIZES)
    module = model_modules(as_model(config))[0]
    random = np.random.default_rng(0)
    tree = jax.tree.map(
        lambda leaf: leaf + random.normal(0, 0.2, leaf.shape).astype(np.float32), init_module_parameters(0, module)
    )
    assert set(tree["blocks"]["000"]) == {"attention", "attention_norm", "mlp"}
    assert all(
        set(tree["blocks"]["000"]["attention"][name]) == {"kernel"} for name in ("query", "key", "value", "output")
    )
    seen = picture(0, 8, 8)
    arrays = packed(config, seen)
    _, actual = raster(hidden_states(module, tree, arrays), arrays, 1)
    expected = reference(seen, tree)
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["vit_3b", "vit_5b", "vit_11b"])
def test_smaller_vits_have_the_same_options(name):
    large, small = part("vit_22b"), part(name)
    sizes = {field: getattr(large, field) for field in ("width", "heads", "ffn", "depth")}
    assert small.head_width == large.head_width and dataclasses.replace(small, **sizes) == large
