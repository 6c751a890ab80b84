"""EVA-CLIPs of timm, small and random: imported, our hidden states are theirs; exported, theirs stay."""

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
from mmjax.weights.published.encoders import eva_clip
from mmjax.weights.published_checkpoint import as_model, checkpoint_matches, open_checkpoint
from tests.mmjax.weights.published.decoders.decoder_parity import same_tensors
from tests.mmjax.weights.published.encoders import timm_models
from tests.mmjax.weights.published.encoders.vision_parity import (
    exported,
    hidden_states,
    imported,
    packed,
    picture,
    randomised,
    raster,
    their_pixels,
    torch_threads,
)

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
    """A function: a model of timm, and a folder as its hub has them."""

    @functools.cache
    def save(kind):
        from safetensors.torch import save_file

        named, arguments = KINDS[kind]
        theirs = randomised(timm_models.load().create_model(named, num_classes=5, dynamic_img_size=True, **arguments))
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
    return config, module, imported(folder, as_model(config), "vision", (module,))


def their_states(theirs, seen):
    torch = torch_threads()
    with torch.no_grad():
        return theirs.forward_features(torch.from_numpy(their_pixels(seen, *CLIP)))[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_are_theirs_beside_other_images(kind, saved):
    theirs, folder = saved(kind)
    config, module, parameters = ours(folder)
    pictures = [picture(number, *size) for number, size in enumerate(SIZES)]
    arrays = packed(config, *pictures)
    found = hidden_states(module, parameters["vision"], arrays)
    for number, seen in enumerate(pictures if kind == "rotary" else pictures[:1], start=1):
        expected = their_states(theirs, seen)
        assert np.std(expected) > 0.1
        states = np.concatenate(raster(found, arrays, number))
        np.testing.assert_allclose(states, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_is_what_was_imported_and_they_load_it(kind, saved, tmp_path):
    from safetensors.torch import load_file

    theirs, folder = saved(kind)
    config, _, parameters = ours(folder)
    exported(folder, as_model(config), "vision", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")
    seen = picture(0, *SIZES[0])
    expected = their_states(theirs, seen)
    theirs.load_state_dict(load_file(tmp_path / "again" / "model.safetensors"))
    np.testing.assert_array_equal(their_states(theirs, seen), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_that_we_write_is_the_one_that_was_read_and_they_build_it(kind, saved):
    theirs, folder = saved(kind)
    checkpoint = open_checkpoint(folder)
    values = json.loads(json.dumps(registry.write_architecture(checkpoint.architecture, checkpoint.config)))
    assert registry.read_architecture(values) == (checkpoint.architecture, checkpoint.config)
    again = timm_models.load().create_model(values["architecture"], num_classes=5, **values["model_args"])
    shapes = ({name: tensor.shape for name, tensor in of.state_dict().items()} for of in (again, theirs))
    assert next(shapes) == next(shapes)


@pytest.mark.parametrize("named", eva_clip.VARIANTS)
def test_a_name_alone_tells_what_timm_builds_of_it(named):
    torch = torch_threads()
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
def test_what_cannot_be_computed_is_refused_by_its_key(changed, said):
    named, arguments = KINDS["rotary"]
    with pytest.raises(ValueError, match=said):
        registry.find_architecture(named).read_config({"architecture": named, "model_args": {**arguments, **changed}})


def test_an_encoder_with_norms_elsewhere_is_refused(saved):
    _, folder = saved("norms behind")
    model = as_model(dataclasses.replace(open_checkpoint(folder).config, post_norm=False))
    with pytest.raises(
        IncompatibleCheckpointError, match="use_post_norm is True in the checkpoint and False in the model"
    ):
        parameter_initializer(model, 0, (("vision", str(folder)),))
