"""Small random EVA-CLIPs of timm: hidden states, export after import, configurations."""

import dataclasses
import functools
import importlib.util
import json

import numpy as np
import pytest

from mmjax.models.model import model_modules
from mmjax.weights import registry
from mmjax.weights.compatibility import IncompatibleCheckpointError
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published.encoders.vision import eva_clip
from mmjax.weights.published_checkpoint import as_model, checkpoint_matches, open_checkpoint
from tests.mmjax.weights.published.encoders import timm_models
from tests.mmjax.weights.published.encoders.vision_parity import (
    hidden_states,
    packed,
    picture,
    published_pixels,
    raster,
)
from tests.mmjax.weights.published.parity import (
    assert_close,
    export_parameters,
    import_parameters,
    randomise_weights,
    same_tensors,
    single_threaded_torch,
)

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
if not importlib.util.find_spec("timm"):
    pytest.skip("timm is not installed", allow_module_level=True)

CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2, "mlp_ratio": 1.5}
# Rotary positions of 4 x 4 patches stand for 6 x 6 in the first.
KINDS = {
    "rotary": ("eva02_base_patch16_clip_224", {**SMALL, "ref_feat_shape": [6, 6]}),
    "norms behind": ("eva02_enormous_patch14_clip_224", SMALL),
    "norms before": ("eva_giant_patch14_clip_224", SMALL),
}
SIZES = ((16, 16), (16, 24), (8, 16))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a function that gives a model of timm, and a folder as its hub has them."""

    @functools.cache
    def save(kind):
        from safetensors.torch import save_file

        named, arguments = KINDS[kind]
        theirs = randomise_weights(
            timm_models.load().create_model(named, num_classes=5, dynamic_img_size=True, **arguments)
        )
        if kind == "rotary":  # all places alike: timm resizes tables with other kernels than the authors
            theirs.pos_embed.data[:, 1:] = theirs.pos_embed.data[:, 1:2]
        folder = tmp_path_factory.mktemp("eva") / "saved"
        folder.mkdir()
        save_file(theirs.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
        values = {"architecture": named, "num_classes": 5, "global_pool": "token", "model_args": arguments}
        (folder / "config.json").write_text(json.dumps(values))
        return theirs, folder

    return save


def ours(folder):
    """The folder's configuration, the encoder and its parameters."""
    config = open_checkpoint(folder).config
    module = model_modules(as_model(config))[0]
    return config, module, import_parameters(folder, as_model(config), "vision", (module,))


def published_states(theirs, seen):
    torch = single_threaded_torch()
    with torch.no_grad():
        return theirs.forward_features(torch.from_numpy(published_pixels(seen, *CLIP)))[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_of_packed_images_match_timm(kind, saved):
    theirs, folder = saved(kind)
    config, module, parameters = ours(folder)
    pictures = [picture(number, *size) for number, size in enumerate(SIZES)]
    arrays = packed(config, *pictures)
    found = hidden_states(module, parameters["vision"], arrays)
    for number, seen in enumerate(pictures if kind == "rotary" else pictures[:1], start=1):
        expected = published_states(theirs, seen)
        states = np.concatenate(raster(found, arrays, number))
        assert_close(states, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_export_after_import_is_bit_identical(kind, saved, tmp_path):
    from safetensors.torch import load_file

    theirs, folder = saved(kind)
    config, _, parameters = ours(folder)
    export_parameters(folder, as_model(config), "vision", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")
    seen = picture(0, *SIZES[0])
    expected = published_states(theirs, seen)
    theirs.load_state_dict(load_file(tmp_path / "again" / "model.safetensors"))
    np.testing.assert_array_equal(published_states(theirs, seen), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_config_reads_back_equal_and_timm_builds_it(kind, saved):
    theirs, folder = saved(kind)
    checkpoint = open_checkpoint(folder)
    values = json.loads(json.dumps(registry.write_architecture(checkpoint.architecture, checkpoint.config)))
    assert registry.read_architecture(values) == (checkpoint.architecture, checkpoint.config)
    again = timm_models.load().create_model(values["architecture"], num_classes=5, **values["model_args"])
    shapes = ({name: tensor.shape for name, tensor in of.state_dict().items()} for of in (again, theirs))
    assert next(shapes) == next(shapes)


@pytest.mark.parametrize("named", eva_clip.VARIANTS)
def test_a_model_name_gives_the_shapes_that_timm_builds(named):
    torch = single_threaded_torch()
    with torch.device("meta"):
        theirs = timm_models.load().create_model(named, num_classes=0, depth=1)
    published = registry.find_architecture(named)
    config = published.read_config({"architecture": named})
    assert registry.write_architecture(published, config)["architecture"] == named
    one = dataclasses.replace(config, depth=1)
    matches = checkpoint_matches(published, one, as_model(one))
    found = {name: shape for of in matches for name, shape in zip(of.tensor_names, of.tensor_shapes, strict=True)}
    assert found == {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_reg_tokens": 4}, "num_reg_tokens is 4"),
        ({"rope_type": "mixed"}, "rope_type is 'mixed'"),
        ({"swiglu_mlp": False}, "swiglu_mlp is False"),
        ({"scale_mlp": False}, "swiglu_mlp without scale_mlp"),
        ({"img_size": [16, 8]}, "img_size is"),
    ],
)
def test_unsupported_values_are_refused_by_key(changed, said):
    named, arguments = KINDS["rotary"]
    with pytest.raises(ValueError, match=said):
        registry.find_architecture(named).read_config({"architecture": named, "model_args": {**arguments, **changed}})


def test_an_encoder_with_another_norm_order_is_refused(saved):
    _, folder = saved("norms behind")
    model = as_model(dataclasses.replace(open_checkpoint(folder).config, norms="before"))
    with pytest.raises(
        IncompatibleCheckpointError, match="use_post_norm is True in the checkpoint and False in the model"
    ):
        parameter_initializer(model, 0, (("vision", str(folder)),))
