"""Parameter trees by layer, and initial values that depend on no plan."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.architectures import BackboneConfig, ModelConfig, UNetConfig, VisionConfig
from mmjax.models.model import model_modules, run_model
from mmjax.models.structure.module import ModuleOutput
from mmjax.models.structure.parameters import (
    abstract_module_parameters,
    init_layer_parameters,
    init_module_parameters,
    piece_definition,
)
from sharding.specs.modules import module_graph
from tests.tiny_model import tiny_batch, tiny_model


def leaves(tree):
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_parameter_trees_have_the_documented_names():
    trees = {module.name: abstract_module_parameters(module) for module in model_modules(tiny_model())}
    assert list(trees) == ["vision", "backbone", "generator"]
    assert list(trees["vision"]) == ["embed", "blocks", "norm", "projector"]
    assert list(trees["backbone"]["blocks"]) == ["000", "001", "002"]
    assert list(trees["generator"]) == ["projector", "unet"]
    layer = trees["backbone"]["blocks"]["002"]
    assert layer["attention"]["key"]["kernel"].shape == (16, 8)
    assert layer["mlp"]["gate"]["kernel"].shape == (16, 24)
    for path in leaves(trees):
        assert all(type(key) is str for key in path.strip("[]").split("]["))


def test_trainable_parts_are_those_of_the_spec():
    owners = {module.name: [piece.part for piece in module.pieces] for module in model_modules(tiny_model())}
    parts = {module.name: module.trainable_parts for module in module_graph(tiny_model()).modules}
    assert parts == {name: tuple(dict.fromkeys(module_parts)) for name, module_parts in owners.items()}


def test_initial_values_have_the_abstract_shapes():
    for module in model_modules(tiny_model()):
        values = init_module_parameters(3, module)
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), values) == jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), abstract_module_parameters(module)
        )
        assert {leaf.dtype for leaf in jax.tree.leaves(values)} == {np.dtype(np.float32)}


def test_parameters_differ_and_depend_on_the_seed():
    modules = model_modules(tiny_model())
    drawn = {}
    for seed in (0, 1):
        for module in modules:
            for path, leaf in leaves(init_module_parameters(seed, module)).items():
                if np.std(leaf) > 0:
                    drawn[seed, module.name, path] = np.asarray(leaf).ravel()
    assert len(drawn) > 60
    for one, other in itertools.combinations(drawn, 2):
        size = min(drawn[one].size, drawn[other].size, 8)
        assert not np.allclose(drawn[one][:size] / drawn[one].std(), drawn[other][:size] / drawn[other].std()), (
            one, other,
        )  # fmt: skip


def test_kernels_start_with_variance_one_over_inputs():
    (_, backbone, _) = model_modules(ModelConfig(backbone=BackboneConfig(width=128, ffn=256)))
    layer = init_layer_parameters(0, backbone, backbone.pieces[1], 0)
    np.testing.assert_allclose(np.std(layer["mlp"]["up"]["kernel"]), 128**-0.5, rtol=0.05)
    np.testing.assert_allclose(np.std(layer["mlp"]["down"]["kernel"]), 256**-0.5, rtol=0.05)
    np.testing.assert_array_equal(layer["mlp_norm"]["scale"], np.ones(128))


def test_initial_values_depend_neither_on_sharding_nor_on_depth():
    (_, backbone, _) = model_modules(tiny_model())
    (_, deeper, _) = model_modules(tiny_model(depth=7))
    piece = backbone.pieces[1]
    plain = init_layer_parameters(5, backbone, piece, 1)
    mesh = jax.make_mesh((2, 2), ("a", "b"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[4:])
    shardings = jax.tree.map(
        lambda s: NamedSharding(mesh, P("b", "a") if len(s.shape) == 2 else P("a")), piece_definition(piece).shapes
    )
    spread = init_layer_parameters(5, backbone, piece, 1, shardings)
    jax.tree.map(np.testing.assert_array_equal, plain, spread)
    jax.tree.map(np.testing.assert_array_equal, plain, init_layer_parameters(5, deeper, deeper.pieces[1], 1))
    assert spread["mlp"]["up"]["kernel"].sharding.spec == P("b", "a")


def test_a_tied_embedding_is_stored_once():
    tied = model_modules(tiny_model(tie_embeddings=True))[1]
    apart = model_modules(tiny_model())[1]
    assert set(abstract_module_parameters(tied)["head"]["000"]) == {"norm"}
    assert set(init_module_parameters(0, tied)["head"]["000"]) == {"norm"}
    assert set(abstract_module_parameters(apart)["head"]["000"]) == {"norm", "embedding"}
    head = piece_definition(tied.pieces[-1])
    assert {path: shape.shape for path, shape in head.tied_shapes.items()} == {"embedding": (24, 16)}
    assert head.tied_splits == {"embedding": ("tensor", None)}


FULL_SIZE = {
    "7B with an encoder of 300 M": ModelConfig(
        (VisionConfig(width=1024, depth=24, heads=16, ffn=4096, patch=14),),
        BackboneConfig(vocabulary=32000, width=4096, depth=32, heads=32, kv_heads=32, ffn=11008),
        (UNetConfig(image_size=64, widths=(320, 640, 1280), blocks=2, head_width=64, groups=32, condition_width=768),),
        "bfloat16",
    ),
    "70B, two encoders, two generators": ModelConfig(
        (
            VisionConfig(width=1664, depth=48, heads=16, ffn=8192, patch=14),
            VisionConfig(name="document", width=1024, depth=24, heads=16, ffn=4096, patch=16),
        ),
        BackboneConfig(vocabulary=128256, width=8192, depth=80, heads=64, kv_heads=8, ffn=28672),
        (UNetConfig(), UNetConfig(name="painter", image_size=64, widths=(64, 128, 256))),
        "bfloat16",
    ),
}


def test_full_size_models_are_traced_without_arrays():
    sizes = {}
    for name, config in FULL_SIZE.items():
        # All layers of a stack are equal: two tell as much as eighty.
        encoders = tuple(dataclasses.replace(encoder, depth=2) for encoder in config.encoders)
        short = dataclasses.replace(config, encoders=encoders, backbone=dataclasses.replace(config.backbone, depth=2))
        sizes[name] = sum(
            leaf.size
            for module in model_modules(config)
            for leaf in jax.tree.leaves(abstract_module_parameters(module))
        )
        modules = model_modules(short)
        parameters = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16),
            {module.name: abstract_module_parameters(module) for module in modules},
        )
        batch = tiny_batch(short, rows=2)
        for generator in short.generators:
            batch[generator.name]["seed_and_step"] = np.zeros(2, np.int32)
        with jax.numpy_dtype_promotion("standard"):  # jax's own attention asks which of two precisions is wider
            left = jax.eval_shape(lambda p, b, modules=modules: run_model(modules, p, b), parameters, batch)
        assert {name: output.loss is not None for name, output in left.items()} == {
            module.name: module.name == "backbone" or module.name in {g.name for g in short.generators}
            for module in modules
        }
        for output in left.values():
            assert isinstance(output, ModuleOutput)
            assert {leaf.dtype for leaf in output.activations.values()} <= {jnp.dtype(jnp.bfloat16)}
    assert 7.0e9 < sizes["7B with an encoder of 300 M"] < 8.5e9
    assert 70e9 < sizes["70B, two encoders, two generators"] < 75e9
