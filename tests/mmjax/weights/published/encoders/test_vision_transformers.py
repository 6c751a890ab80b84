"""Small random vision towers of transformers: hidden states, export after import, configurations."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from mmjax.models.model import model_modules
from mmjax.weights import registry
from mmjax.weights.compatibility import IncompatibleCheckpointError
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published_checkpoint import as_model, open_checkpoint
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
transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 36,
    "image_size": 16,
    "patch_size": 4,
}
CLIP_PIXELS = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
# (class, its configuration, mean and deviation of pixels)
CASES = {
    "vit": ("ViTModel", transformers.ViTConfig(**SMALL), HALVES),
    "vit without biases": ("ViTModel", transformers.ViTConfig(**SMALL, qkv_bias=False), HALVES),
    "clip": ("CLIPVisionModel", transformers.CLIPVisionConfig(**SMALL), CLIP_PIXELS),
    "siglip": ("SiglipVisionModel", transformers.SiglipVisionConfig(**SMALL), HALVES),
}
SIZES = ((16, 16), (16, 24), (8, 16))  # of the table, and others, for which it is interpolated


@dataclasses.dataclass(frozen=True)
class Case:
    """A model of transformers, and the encoder read from its folder."""

    kind: str
    theirs: object
    folder: object

    @property
    def config(self):
        return open_checkpoint(self.folder).config

    @property
    def module(self):
        return model_modules(as_model(self.config))[0]

    @property
    def parameters(self):
        return import_parameters(self.folder, as_model(self.config), "vision", (self.module,))

    def published_states(self, pixels, model=None):
        torch = single_threaded_torch()
        given = torch.from_numpy(published_pixels(pixels, *CASES[self.kind][2]))
        with torch.no_grad():
            found = (model or self.theirs)(given, interpolate_pos_encoding=True, output_hidden_states=True)
        return [state[0].numpy() for state in (*found.hidden_states[1:-1], found.last_hidden_state)]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Returns a function that gives the case of a name."""
    made = {}

    def make(kind):
        if kind not in made:
            named, config, _ = CASES[kind]
            theirs = randomise_weights(getattr(transformers, named)(config))
            folder = tmp_path_factory.mktemp("towers") / "saved"
            theirs.save_pretrained(folder)
            made[kind] = Case(kind, theirs, folder)
        return made[kind]

    return make


@pytest.mark.parametrize("kind", CASES)
def test_hidden_states_of_packed_images_of_any_size_match_transformers(kind, cases):
    case = cases(kind)
    pictures = [picture(number, *size) for number, size in enumerate(SIZES)]
    merging = dataclasses.replace(case.config, merge=2)
    module = model_modules(as_model(merging))[0]
    arrays = packed(merging, *pictures)
    found = hidden_states(module, case.parameters["vision"], arrays)
    for number, seen in enumerate(pictures, start=1):
        *_, expected = case.published_states(seen)
        ours = np.concatenate(raster(found, arrays, number))
        assert_close(ours, expected)


@pytest.mark.parametrize("kind", CASES)
def test_export_after_import_is_bit_identical(kind, cases, tmp_path):
    case = cases(kind)
    export_parameters(case.folder, as_model(case.config), "vision", case.parameters, tmp_path / "again")
    assert same_tensors(case.folder, tmp_path / "again")
    again = type(case.theirs).from_pretrained(tmp_path / "again").eval()
    seen = picture(0, *SIZES[0])
    for found, expected in zip(case.published_states(seen, again), case.published_states(seen), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", CASES)
def test_a_written_config_reads_back_equal(kind, cases):
    case = cases(kind)
    published = open_checkpoint(case.folder).architecture
    values = registry.write_architecture(published, case.config)
    assert published.read_config(json.loads(json.dumps(values))) == case.config
    named = type(case.theirs.config).from_dict(values)
    asked = {key for key in values if key not in ("architectures", "model_type")}
    assert {key: getattr(named, key) for key in asked} == {key: getattr(case.theirs.config, key) for key in asked}


WHOLE = {
    "clip": lambda: transformers.CLIPModel(
        transformers.CLIPConfig(vision_config=SMALL, text_config={**SMALL, "vocab_size": 20}, projection_dim=8)
    ),
    "siglip": lambda: transformers.SiglipModel(
        transformers.SiglipConfig(vision_config=SMALL, text_config={**SMALL, "vocab_size": 20})
    ),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_tower_is_read_from_a_whole_model_and_the_rest_is_kept(kind, cases, tmp_path):
    whole, case = randomise_weights(WHOLE[kind]()), cases(kind)
    whole.vision_model.load_state_dict(case.theirs.state_dict())
    whole.save_pretrained(tmp_path / "whole")
    model = as_model(open_checkpoint(tmp_path / "whole").config)
    assert model == as_model(case.config)
    parameters = import_parameters(tmp_path / "whole", model, "vision", (case.module,))
    jax.tree.map(np.testing.assert_array_equal, parameters["vision"]["blocks"], case.parameters["vision"]["blocks"])
    export_parameters(tmp_path / "whole", model, "vision", parameters, tmp_path / "again")
    assert same_tensors(tmp_path / "whole", tmp_path / "again")


@pytest.mark.parametrize("kind", ["vit", "clip", "siglip"])
def test_unused_blocks_are_not_computed_but_exported(kind, cases, tmp_path):
    case = cases(kind)
    config = dataclasses.replace(case.config, depth=1, final_norm=False, unused_blocks=1)
    model, seen = as_model(config), picture(0, *SIZES[0])
    module, arrays = model_modules(model)[0], packed(config, seen)
    parameters = import_parameters(case.folder, model, "vision", (module,))
    expected, _ = case.published_states(seen)
    found = np.concatenate(raster(hidden_states(module, parameters["vision"], arrays), arrays, 1))
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    export_parameters(case.folder, model, "vision", parameters, tmp_path / "again")
    assert same_tensors(case.folder, tmp_path / "again")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"depth": 1}, "num_hidden_layers is 2 in the checkpoint and 1 in the model"),
        ({"activation": "gelu"}, "hidden_act is 'quick_gelu' in the checkpoint and 'gelu' in the model"),
        ({"input_norm": False}, "input_norm is False, but the published architecture has True"),
        ({"class_token": False}, "class_token is False"),
        ({"qk_norm": "head"}, "qk_norm is 'head'"),
    ],
)
def test_an_encoder_with_other_options_than_clip_is_refused(changed, said, cases):
    case = cases("clip")
    model = as_model(dataclasses.replace(case.config, **changed))
    with pytest.raises(IncompatibleCheckpointError, match=said):
        parameter_initializer(model, 0, (("vision", str(case.folder)),))


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"hidden_act": "tanh"}, "hidden_act is 'tanh'"), ({"image_size": [16, 8]}, "image_size is")],
)
def test_unsupported_values_are_refused_by_key(changed, said):
    with pytest.raises(ValueError, match=said):
        registry.find_architecture("vit").read_config({**SMALL, **changed})


def test_pixel_normalisation_is_read_from_the_folder(cases, tmp_path):
    case = cases("clip")
    np.testing.assert_allclose(case.config.pixel_mean, 2 * np.array(CLIP_PIXELS[0]) - 1)
    export_parameters(case.folder, as_model(case.config), "vision", case.parameters, tmp_path / "other")
    values = {"image_mean": [0.5, 0.25, 0.5], "image_std": [0.5, 0.5, 0.25], "size": 16}
    (tmp_path / "other" / "preprocessor_config.json").write_text(json.dumps(values))
    config = open_checkpoint(tmp_path / "other").config
    assert (config.pixel_mean, config.pixel_std) == ((0.0, -0.5, 0.0), (1.0, 1.0, 0.5))
