"""Small random InternViTs under the names of transformers and of the authors."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from mmjax.models.model import model_modules
from mmjax.weights import registry
from mmjax.weights.compatibility import IncompatibleCheckpointError
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published.encoders.vision import internvit
from mmjax.weights.published_checkpoint import as_model, open_checkpoint
from tests.mmjax.weights.published.encoders.small_internvits import (
    IMAGENET,
    KINDS,
    SMALL,
    of_authors,
    values_of_authors,
)
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

SIZES = ((16, 16), (16, 24))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a function that gives a model, its folder, and a folder of its weights by the authors' names."""

    @functools.cache
    def save(kind):
        theirs = randomise_weights(
            transformers.InternVLVisionModel(transformers.InternVLVisionConfig(**SMALL, **KINDS[kind]))
        )
        root = tmp_path_factory.mktemp("internvit")
        theirs.save_pretrained(root / "transformers")
        rewrite(root / "transformers", root / "authors", kind)
        return theirs, root

    return save


def rewrite(folder, output, kind):
    """The folder's weights under the authors' names."""
    from safetensors.numpy import load_file, save_file

    output.mkdir()
    save_file(
        of_authors(load_file(folder / "model.safetensors")), output / "model.safetensors", metadata={"format": "pt"}
    )
    (output / "config.json").write_text(json.dumps(values_of_authors(kind)))


def ours(folder):
    """The folder's configuration, the encoder and its parameters."""
    config = open_checkpoint(folder).config
    module = model_modules(as_model(config))[0]
    return config, module, import_parameters(folder, as_model(config), "vision", (module,))


def published_states(theirs, seen):
    torch = single_threaded_torch()
    with torch.no_grad():
        return theirs(torch.from_numpy(published_pixels(seen, *IMAGENET))).last_hidden_state[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_match_transformers_under_both_namings(kind, saved):
    theirs, root = saved(kind)
    config, _, parameters = ours(root / "transformers")
    original, _, same = ours(root / "authors")
    assert original == config
    np.testing.assert_equal(same, parameters)
    merging = dataclasses.replace(config, merge=2)
    pictures = [picture(number, *size) for number, size in enumerate(SIZES)]
    arrays = packed(merging, *pictures)
    found = hidden_states(model_modules(as_model(merging))[0], parameters["vision"], arrays)
    for number, seen in enumerate(pictures, start=1):
        expected = published_states(theirs, seen)
        states = np.concatenate(raster(found, arrays, number))
        assert_close(states, expected)


@pytest.mark.parametrize("names", ["transformers", "authors"])
@pytest.mark.parametrize("kind", KINDS)
def test_export_after_import_is_bit_identical(kind, names, saved, tmp_path):
    theirs, root = saved(kind)
    config, _, parameters = ours(root / names)
    export_parameters(root / names, as_model(config), "vision", parameters, tmp_path / "again")
    assert same_tensors(root / names, tmp_path / "again")
    if names == "transformers":
        again, seen = type(theirs).from_pretrained(tmp_path / "again").eval(), picture(0, *SIZES[0])
        np.testing.assert_array_equal(published_states(again, seen), published_states(theirs, seen))


@pytest.mark.parametrize("published", internvit.PUBLISHED, ids=lambda published: published.name)
@pytest.mark.parametrize("kind", KINDS)
def test_a_written_config_reads_back_equal(kind, published, saved):
    theirs, root = saved(kind)
    config = open_checkpoint(root / "transformers").config
    values = json.loads(json.dumps(registry.write_architecture(published, config)))
    assert published.read_config(values) == config
    if published is internvit.TRANSFORMERS:
        named = type(theirs.config).from_dict(values)
        told = [key for key in values if key not in ("architectures", "model_type")]
        for key in told:
            assert getattr(named, key) == getattr(theirs.config, key), key


def test_unused_blocks_are_not_computed_but_exported(saved, tmp_path):
    for names in ("transformers", "authors"):
        folder = saved("6B")[1] / names
        config = dataclasses.replace(open_checkpoint(folder).config, depth=1, unused_blocks=1)
        model = as_model(config)
        parameters = import_parameters(folder, model, "vision", (model_modules(model)[0],))
        export_parameters(folder, model, "vision", parameters, tmp_path / names)
        assert same_tensors(folder, tmp_path / names)


def test_values_missing_from_the_authors_files_are_those_of_the_6b_model():
    config = registry.find_architecture("intern_vit_6b").read_config({"num_hidden_layers": 45, "image_size": 448})
    assert (config.width, config.depth, config.heads, config.ffn, config.grid) == (3200, 45, 25, 12800, 32)
    assert (config.norm, config.qk_norm, config.layer_scale, config.final_norm) == ("rmsnorm", "width", 0.1, False)
    assert config.biases == ("output", "mlp")


@pytest.mark.parametrize(
    ("model_type", "changed", "said"),
    [
        ("internvl_vision", {"norm_type": "batch_norm"}, "norm_type is 'batch_norm'"),
        ("internvl_vision", {"use_qk_norm": True}, "norm_type is 'layer_norm'"),
        ("internvl_vision", {"image_size": [448, 224]}, "image_size is"),
        ("internvl_vision", {"layer_scale_init_value": 0.0}, "layer_scale_init_value is 0"),
        ("internvl_vision", {"use_absolute_position_embeddings": False}, "use_absolute_position_embeddings"),
        ("internvl_vision", {"norm_type": "rms_norm", "use_mean_pooling": False}, "use_mean_pooling"),
        ("intern_vit_6b", {"norm_type": "layer_norm"}, "norm_type is 'layer_norm'"),
    ],
)
def test_unsupported_values_are_refused_by_key(model_type, changed, said):
    with pytest.raises(ValueError, match=said):
        registry.find_architecture(model_type).read_config(changed)


def test_an_encoder_with_other_norms_is_refused(saved):
    _, root = saved("300M")
    model = as_model(dataclasses.replace(open_checkpoint(root / "authors").config, norm="rmsnorm"))
    with pytest.raises(
        IncompatibleCheckpointError, match="norm_type is 'layer_norm' in the checkpoint and 'rms_norm' in the model"
    ):
        parameter_initializer(model, 0, (("vision", str(root / "authors")),))
