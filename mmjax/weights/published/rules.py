"""Rules: which tensors of a published checkpoint are which parameters of ours.

An architecture's file beside this one writes a handful of rules, such as

    Rule("model.layers.{layer}.self_attn.q_proj.weight", "blocks/attention/query/kernel", LINEAR)

and gives them as a `Published`. Names are of a module's own, so that a checkpoint of several modules (LLaVA) is the
rules of its modules under `prefixed` names.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mmjax.weights.published.tensor_layouts import IDENTITY, Shape, TensorLayout

LAYER = "{layer}"


@dataclasses.dataclass(frozen=True)
class Rule:
    """Some tensors of theirs that are some parameters of ours: mostly one of each.

    Attributes:
        theirs: Their name, or names; `{layer}` stands for the number of a layer of a stack.
        ours: The path in the module, `piece/path` without the layer, or several paths of one piece.
        layout: How they lie in one another.
    """

    tensors: str | tuple[str, ...]
    parameters: str | tuple[str, ...]
    layout: TensorLayout = IDENTITY

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Their names as a tuple."""
        return (self.tensors,) if isinstance(self.tensors, str) else self.tensors

    @property
    def parameter_paths(self) -> tuple[str, ...]:
        """Our paths as a tuple."""
        return (self.parameters,) if isinstance(self.parameters, str) else self.parameters

    @property
    def piece(self) -> str:
        """The piece of the module that all its parameters are in."""
        (piece,) = {path.partition("/")[0] for path in self.parameter_paths}
        return piece


Rules = Mapping[str, tuple[Rule, ...]]
"""Rules by our module's name."""

Config = Any
"""An architecture of `configs.architectures`: a module's or a ModelConfig."""


def _nothing(config: Config) -> tuple[str, ...]:
    del config
    return ()


def _none_repeated(config: Config) -> Mapping[str, str]:
    del config
    return {}


@dataclasses.dataclass(frozen=True)
class PublishedArchitecture:
    """A published architecture: what its config.json and its tensors mean here.

    Attributes:
        name: The class that loads it, as `architectures` in config.json names it, such as `LlamaForCausalLM`.
        model_types: What `model_type` in config.json (`_class_name` in diffusers', `architecture` in timm's) may say;
            the first is written.
        config_type: What `read_config` gives: BackboneConfig, VisionConfig, ..., or ModelConfig.
        read_config: The architecture that a config.json describes. Raises ValueError where we can't compute it, with
            the key and its value.
        write_config: The inverse, as a dictionary for JSON without `model_type`, `architectures` and `torch_dtype`.
            Raises ValueError where they can't compute it.
        rules: By the name of our module. Pieces that no rule names (a projector) are no part of the checkpoint.
        ignored: Names in their files that are nothing of ours, as patterns of `fnmatch` (`*.rotary_emb.inv_freq`). A
            name that a rule has is not ignored. An export copies them from the checkpoint it was told to be like.
        repeated: Names in some files that hold another tensor once more -> that tensor (tied heads).
        aliases: Prefixes of names in some files -> what `rules` and `ignored` say instead; the first that fits.
        stem: Of their files: `model` in model.safetensors and model.safetensors.index.json.
    """

    name: str
    model_types: tuple[str, ...]
    config_type: type
    read_config: Callable[[Mapping[str, Any]], Config]
    write_config: Callable[[Config], dict[str, Any]]
    rules: Callable[[Config], Rules]
    ignored: Callable[[Config], tuple[str, ...]] = _nothing
    duplicates: Callable[[Config], Mapping[str, str]] = _none_repeated
    aliases: tuple[tuple[str, str], ...] = ()
    file_stem: str = "model"


def expand_numbers(name: str, field: str, count: int) -> tuple[str, ...]:
    """`name` with `{field}` as every number below `count`: the experts of a layer."""
    return tuple(name.replace(f"{{{field}}}", str(number)) for number in range(count))


def with_prefix(rules: Iterable[Rule], prefix: str, instead_of: str = "") -> tuple[Rule, ...]:
    """The rules of a module whose tensors stand under a prefix in a larger checkpoint.

    Args:
        rules: The module's own.
        prefix: Before their names.
        instead_of: What their names start with; it falls away where it stands.
    """
    return tuple(
        dataclasses.replace(rule, tensors=tuple(prefix + name.removeprefix(instead_of) for name in rule.tensor_names))
        for rule in rules
    )


def linear_rules(theirs: str, ours: str, layout: TensorLayout, bias: bool) -> tuple[Rule, ...]:
    """The rules of a weight and maybe a bias: `theirs.weight` and `.bias` are `ours/kernel` and `ours/bias`."""
    weight = Rule(f"{theirs}.weight", f"{ours}/kernel", layout)
    return (weight, Rule(f"{theirs}.bias", f"{ours}/bias")) if bias else (weight,)


def norm_rules(theirs: str, ours: str, bias: bool) -> tuple[Rule, ...]:
    """The rules of a norm: `theirs.weight` and maybe `theirs.bias`, `ours/scale` and `ours/bias`."""
    scale = Rule(f"{theirs}.weight", f"{ours}/scale")
    return (scale, Rule(f"{theirs}.bias", f"{ours}/bias")) if bias else (scale,)


@dataclasses.dataclass(frozen=True)
class TensorMatch:
    """A rule for one layer: tensors by name and parameters by their whole path, `module/piece/layer/path`."""

    tensor_names: tuple[str, ...]
    parameter_paths: tuple[str, ...]
    parameter_shapes: tuple[Shape, ...]
    layout: TensorLayout

    @property
    def layer(self) -> tuple[str, str, str]:
        """Module, piece and layer that all its parameters are in."""
        module, piece, layer, _ = self.parameter_paths[0].split("/", 3)
        return module, piece, layer

    @property
    def tensor_shapes(self) -> tuple[Shape, ...]:
        """Of the tensors named."""
        return self.layout.published_shapes(self.parameter_shapes)


def match_rules(rules: Rules, shapes: Mapping[str, Shape]) -> tuple[TensorMatch, ...]:
    """Every rule for every layer there is.

    Args:
        rules: By module.
        shapes: Of our parameters, by `module/piece/layer/path`; those of other modules are left alone.

    Raises:
        ValueError: The rules are wrong: a path that our module lacks, two rules for one name or path, a parameter
            without a rule in a piece that has some, a layout that does not fit. All are named.
    """
    layers: dict[tuple[str, str], dict[str, None]] = {}
    for path in shapes:
        module, piece, layer, _ = path.split("/", 3)
        layers.setdefault((module, piece), {})[layer] = None
    matches, wrong = [], []
    for module, each in rules.items():
        for rule in each:
            if (module, rule.piece) not in layers:
                wrong.append(f"{module} has no piece {rule.piece!r}, which {rule.parameters} names")
            for layer in layers.get((module, rule.piece), {}):
                matches.append(_of_layer(rule, module, layer, shapes, wrong))
    named = [path for of in matches for path in of.parameter_paths]
    pieces = {tuple(path.split("/", 2)[:2]) for path in named}
    owed = [path for path in shapes if tuple(path.split("/", 2)[:2]) in pieces]
    wrong += [f"no rule gives {path}" for path in owed if path not in set(named)]
    wrong += [f"several rules give {path}" for path in _repeated(named)]
    wrong += [f"several rules read {name}" for name in _repeated(name for of in matches for name in of.tensor_names)]
    if wrong:
        raise ValueError("the rules do not fit the modules: " + "; ".join(wrong))
    return tuple(matches)


def _of_layer(rule: Rule, module: str, layer: str, shapes: Mapping[str, Shape], wrong: list[str]) -> TensorMatch:
    """The rule for one layer; what is wrong with it is added to the list."""
    names = tuple(name.replace(LAYER, str(int(layer))) for name in rule.tensor_names)
    paths = tuple(f"{module}/{path.replace('/', f'/{layer}/', 1)}" for path in rule.parameter_paths)
    lacking = [path for path in paths if path not in shapes]
    found = TensorMatch(names, paths, tuple(shapes.get(path, ()) for path in paths), rule.layout)
    if lacking:
        wrong.append(f"there is no parameter {', '.join(lacking)}")
        return found
    try:
        if len(found.tensor_shapes) != len(names):
            wrong.append(f"{', '.join(paths)} are {len(found.tensor_shapes)} tensors, but {len(names)} are named")
    except ValueError as error:
        wrong.append(f"{', '.join(paths)}: {error}")
    return found


def _repeated(values: Iterable[str]) -> list[str]:
    seen: dict[str, int] = {}
    for value in values:
        seen[value] = seen.get(value, 0) + 1
    return [value for value, times in seen.items() if times > 1]
