"""The models of the papers and published ones: every gin file parses, and has the published number of parameters."""

import dataclasses
import functools
import math
import pathlib
import re

import gin
import jax
import pytest

import configs
from configs import architectures
from configs.architectures import AudioConfig, BackboneConfig, DiTConfig, ModelConfig, UNetConfig, VisionConfig
from mmjax import cli
from mmjax.models.model import model_modules
from mmjax.models.structure.parameters import abstract_module_parameters
from mmjax.training.verification.shrink import shrink_model
from mmjax.weights import registry
from sharding.specs.modules import module_graph
from tests.configs.published import MODELS, PARTS, TOLERANCE, Published

FOLDER = pathlib.Path(configs.__file__).parent / "models"
FILES = sorted(FOLDER.glob("*.gin"))
DOCUMENT = FOLDER.parents[1] / "docs" / "reference" / "models.md"
SMALL = BackboneConfig(depth=4)
SCOPE = re.compile(r"^(\w+)/architectures\.(\w+):$", re.MULTILINE)
BINDING_OF_A_MODEL = ("name", "merge", "image_size")  # what a model may set of a part

# Part or model -> the published architecture that computes it.
COMPUTED_AS = {
    "vit_huge": "vit",
    "clip_vit_l_336": "clip",
    "siglip_so400m_384": "siglip",
    "internvit_6b": "intern_vit_6b",
    "eva_clip_1b": "eva_giant_patch14_clip_224",
    "eva_clip_4b": "eva02_enormous_patch14_clip_224",
    "whisper_large": "whisper",
    "orch_whisper_6b": "whisper",
    **dict.fromkeys(("llama2_7b", "llama2_13b", "llama2_70b", "llama3_8b", "llama3_70b", "yi_34b"), "llama"),
    **dict.fromkeys(("qwen1_5_110b", "qwen2_7b", "qwen2_14b", "qwen2_72b"), "qwen2"),
    **dict.fromkeys(("gpt_11b", "gpt_175b"), "gpt2"),
    "internlm2_20b": "internlm2",
    "internvit_6b_internlm2_20b": "internvl_chat/internlm2",
    "internvit_6b_llama3_8b": "internvl_chat/llama",
    "internvit_6b_qwen1_5_110b": "internvl_chat/qwen2",
    "internvl3_5_8b": "internvl_chat/qwen3",
    "qwen3_8b": "qwen3",
    "gemma3_27b": "gemma3",
    "qwen3_vl_8b": "qwen3_vl",
    "qwen3_vl_30b_a3b": "qwen3_vl_moe",
    "flux_1_dev": "FluxTransformer2DModel",
    "stable_diffusion_3": "SD3Transformer2DModel",
}

Part = VisionConfig | AudioConfig | BackboneConfig | UNetConfig | DiTConfig


@functools.cache
def parts() -> dict[str, Part]:
    """Every part, by its gin scope."""
    configs_by_scope = {}
    for path in sorted((FOLDER / "parts").glob("*.gin")):
        cli.parse_gin((f"models/parts/{path.name}",))
        for scope, kind in SCOPE.findall(path.read_text()):
            with gin.config_scope(scope):
                configs_by_scope[scope] = cli.configured(getattr(architectures, kind))
    return configs_by_scope


@functools.cache
def model(name: str) -> ModelConfig:
    cli.parse_gin((f"models/{name}.gin",))
    return cli.configured(ModelConfig)


@functools.cache
def parameters(config: ModelConfig) -> dict[str, int]:
    """Parameters by trainable part, such as `vision` and `vision_projector`."""
    sizes: dict[str, int] = {}
    for module in model_modules(config):
        shapes = abstract_module_parameters(module)
        for piece in module.pieces:
            size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes[piece.name]))
            sizes[piece.part] = sizes.get(piece.part, 0) + size
    return sizes


@functools.cache
def part_parameters(part: Part) -> int:
    wholes = {
        VisionConfig: lambda: ModelConfig((part,), SMALL, ()),
        AudioConfig: lambda: ModelConfig((part,), SMALL, ()),
        BackboneConfig: lambda: ModelConfig((), part, ()),
        UNetConfig: lambda: ModelConfig((), SMALL, (part,)),
        DiTConfig: lambda: ModelConfig((), SMALL, (part,)),
    }
    return parameters(wholes[type(part)]())[part.name]


def parts_named(name: str) -> list[str]:
    """Scopes that a model's file names, in the order of its modules."""
    return re.findall(r"@(\w+)/architectures", (FOLDER / f"{name}.gin").read_text())


def deviation(ours: int, published: Published) -> float:
    return ours / (published.parameters * 1e9) - 1


def test_parts_and_published_numbers_correspond():
    assert set(parts()) == set(PARTS)
    assert set(MODELS) <= {path.stem for path in FILES}


def check(ours: int, published: Published) -> None:
    off = deviation(ours, published)
    if published.deviation is None:
        assert abs(off) <= TOLERANCE, f"{off:+.1%} of {published.parameters} B ({published.source})"
    else:
        assert abs(off) > TOLERANCE, f"{off:+.1%} needs no reason"
        assert abs(off - published.deviation) < 0.001, f"{off:+.2%}, not {published.deviation:+.1%}"


@pytest.mark.parametrize("name", PARTS)
def test_a_part_has_the_published_parameters_or_a_reason(name):
    check(part_parameters(parts()[name]), PARTS[name])


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_published_parameters_or_a_reason(name):
    check(sum(parameters(model(name)).values()), MODELS[name])


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_a_model_is_made_of_the_parts_it_names(name):
    config = model(name)
    modules = (*config.encoders, config.backbone, *config.generators)
    assert len(parts_named(name)) == len(modules)
    for scope, module in zip(parts_named(name), modules, strict=True):
        part = parts()[scope]
        model_fields = {field: getattr(module, field) for field in BINDING_OF_A_MODEL if hasattr(module, field)}
        assert dataclasses.replace(part, **model_fields) == module
    assert config.dtype == "bfloat16"


@pytest.mark.parametrize(("name", "model_type"), COMPUTED_AS.items())
def test_a_part_or_model_round_trips_through_its_published_config(name, model_type):
    """Writing config.json refuses whatever the published architecture would compute differently."""
    config = parts()[name] if name in parts() else model(name)
    values = registry.write_architecture(registry.find_architecture(model_type), config)
    assert registry.model_type_of(values) in registry.find_architecture(model_type).model_types
    assert values.get("architecture", model_type) == model_type


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_a_model_can_be_verified_small(name):
    small = shrink_model(model(name), 40)
    assert sum(parameters(small).values()) < 2e8  # of 128 experts, none are left out
    assert [type(encoder) for encoder in small.encoders] == [type(encoder) for encoder in model(name).encoders]
    assert max(module.layer_count for module in module_graph(small).modules) <= 4


def test_every_model_of_the_papers_exists():
    shapes = {path.stem: model(path.stem) for path in FILES}
    disttrain = {name: shapes[f"mllm_{name}"] for name in ("9b", "15b", "72b")}
    assert [config.generators[0].image_size for config in disttrain.values()] == [512, 512, 1024]
    assert [config.backbone.depth for config in disttrain.values()] == [32, 40, 80]
    orchmllm = [shapes[f"mllm_{name}"] for name in ("10b", "18b", "84b")]
    positions = [[encoder.positions_per_token for encoder in config.encoders] for config in orchmllm]
    assert positions == [[1, 2], [4, 2], [4, 4]]
    assert all(not config.generators for config in orchmllm)
    with_internvit = {name for name in shapes if name.startswith("internvit_6b_")}
    assert len(with_internvit) == 5 and len([name for name in shapes if name.startswith("eva_clip_")]) == 4
    assert len([name for name in shapes if name.startswith("llava_1_6_")]) == 3
    two = {name for name in shapes if re.search("vit_.*_vit_", name)}
    assert two == {"vit_11b_vit_5b_gpt_175b", "vit_22b_vit_5b_gpt_175b", "vit_22b_vit_11b_gpt_175b"}


def billions(number: int) -> str:
    return f"{number / 1e9:.3g} B"


def against(ours: int, published: Published) -> str:
    """Cells: ours, published, difference, source."""
    source = published.source + (f": {published.reason}" if published.reason else "")
    return f"{billions(ours)} | {published.parameters:.3g} B | {deviation(ours, published):+.1%} | {source}"


def part_rows() -> str:
    """Table of the parts for the document."""
    rows = ["| part | width x layers | parameters | published | difference | source |", "|---|---|---|---|---|---|"]
    for name, part in parts().items():
        depth = part.layer_count if isinstance(part, DiTConfig) else getattr(part, "depth", 0)
        shape = "U-Net" if isinstance(part, UNetConfig) else f"{part.width:,} x {depth}"
        rows.append(f"| `{name}` | {shape} | {against(part_parameters(part), PARTS[name])} |")
    return "\n".join(rows)


def model_rows() -> str:
    """Table of the models for the document."""
    rows = [
        "| file | what it is | parts | parameters | published | difference | source |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in FILES:
        comment = path.read_text().splitlines()[0].removeprefix("# ").rstrip(".")
        names = ", ".join(f"`{name}`" for name in parts_named(path.stem))
        ours = sum(parameters(model(path.stem)).values())
        counts = against(ours, MODELS[path.stem]) if path.stem in MODELS else f"{billions(ours)} | | |"
        rows.append(f"| `{path.stem}` | {comment} | {names} | {counts} |")
    return "\n".join(rows)


@pytest.mark.parametrize("rows", [part_rows, model_rows])
def test_the_document_has_these_numbers(rows):
    assert rows() in DOCUMENT.read_text(), f"docs/reference/models.md has another table than\n{rows()}"
