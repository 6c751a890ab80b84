"""Rules that match the tensors of a published checkpoint with the parameters of a model.

The file of an architecture writes a handful of rules, such as

    Rule("model.layers.{layer}.self_attn.q_proj.weight", "blocks/attention/query/kernel", LINEAR)

and declares them in a `PublishedArchitecture`. Rules have the tensor names of the module's own checkpoint; a checkpoint
of several modules (LLaVA) has the rules of its modules under prefixed names (`with_prefix`).
`mmjax.weights.published_checkpoint` applies them.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from configs.training_choices import without_training_choices
from mmjax.weights.published.tensor_layouts import IDENTITY, Fused, Shape, TensorLayout

LAYER = "{layer}"


@dataclasses.dataclass(frozen=True)
class Rule:
    """Published tensors that are parameters of a module; mostly one of each.

    Attributes:
        tensors: Name of the tensor, or names; `{layer}` stands for the number of a layer of a stack.
        parameters: Path of the parameter in the module, `piece/path` without the layer, or several paths of one piece.
        layout: The conversion of the tensors to the parameters.
        first_layer: Number for `{layer}` in the first layer of the stack, where other pieces hold earlier layers.
    """

    tensors: str | tuple[str, ...]
    parameters: str | tuple[str, ...]
    layout: TensorLayout = IDENTITY
    first_layer: int = 0

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensors as a tuple."""
        return (self.tensors,) if isinstance(self.tensors, str) else self.tensors

    @property
    def parameter_paths(self) -> tuple[str, ...]:
        """Paths of the parameters as a tuple."""
        return (self.parameters,) if isinstance(self.parameters, str) else self.parameters

    @property
    def piece(self) -> str:
        """The piece of the module that contains all parameters of the rule."""
        (piece,) = {path.partition("/")[0] for path in self.parameter_paths}
        return piece


Rules = Mapping[str, tuple[Rule, ...]]
"""Rules by the name of the module."""

Config = Any
"""A configuration of `configs.architectures`: of a module, or a ModelConfig."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedArchitecture:
    """A published architecture: conversions of its config.json to a configuration, and of its tensors to parameters.

    Attributes:
        name: Name of the class that loads it, as in `architectures` of config.json, such as `LlamaForCausalLM`.
        model_types: Values of `model_type` in config.json (`_class_name` in diffusers' files, `architecture` in timm's)
            that mean it; the first is written.
        config_type: Type of the configuration: BackboneConfig, VisionConfig, ..., or ModelConfig.
        read_config: Configuration that a config.json describes. Raises ValueError, with the key and its value, where
            mmjax cannot compute it.
        write_config: The inverse: a dictionary for JSON, without `model_type`, `architectures` and `torch_dtype`.
            Raises ValueError where the published architecture cannot compute it.
        rules: Rules of a configuration. Pieces that no rule names (a projector) are not in the checkpoint.
        ignored: Patterns (of `fnmatch`, such as `*.rotary_emb.inv_freq`) of tensors that have no parameter on purpose.
            A tensor that a rule names is not ignored. An export copies them from its original checkpoint.
        duplicates: Tensors that some files hold as a copy of another tensor (tied heads), with that tensor's name.
        aliases: Prefixes of tensor names in some files, with the prefix that `rules` and `ignored` have instead; the
            first that fits is replaced.
        file_stem: Stem of the file names: `model` in model.safetensors and model.safetensors.index.json.
        alternatives: The same architecture by other rules, where files of one model type differ in shapes of tensors.
            A folder is read and written by the rules that fit the shapes of its tensors best.
    """

    name: str
    model_types: tuple[str, ...]
    config_type: type
    read_config: Callable[[Mapping[str, Any]], Config]
    write_config: Callable[[Config], dict[str, Any]]
    rules: Callable[[Config], Rules]
    ignored: Callable[[Config], tuple[str, ...]] = lambda config: ()
    duplicates: Callable[[Config], Mapping[str, str]] = lambda config: {}
    aliases: tuple[tuple[str, str], ...] = ()
    file_stem: str = "model"
    alternatives: tuple["PublishedArchitecture", ...] = ()


def expand_numbers(name: str, field: str, count: int) -> tuple[str, ...]:
    """Replaces `{field}` in a name by every number below `count`: the names of a layer's experts."""
    return tuple(name.replace(f"{{{field}}}", str(number)) for number in range(count))


def with_prefix(rules: Iterable[Rule], prefix: str) -> tuple[Rule, ...]:
    """Adds a prefix to the tensor names of a module's rules, for a larger checkpoint that contains the module."""
    return tuple(
        dataclasses.replace(rule, tensors=tuple(prefix + name for name in rule.tensor_names)) for rule in rules
    )


def with_first_layers(rules: Iterable[Rule], stack: str, pieces: Sequence[str]) -> tuple[Rule, ...]:
    """Adapts rules to a stack whose first layers are pieces of their own, such as layers that take encoder features.

    Args:
        rules: Rules of a module all of whose layers are in the stack.
        stack: Name of the piece that is the stack.
        pieces: Names of the pieces of its first layers, in order.
    """
    found: list[Rule] = []
    for rule in rules:
        if rule.piece != stack:
            found.append(rule)
            continue
        for number, piece in enumerate(pieces):
            tensors = tuple(name.replace(LAYER, str(number)) for name in rule.tensor_names)
            paths = tuple(f"{piece}/{path.partition('/')[2]}" for path in rule.parameter_paths)
            found.append(dataclasses.replace(rule, tensors=tensors, parameters=paths))
        found.append(dataclasses.replace(rule, first_layer=rule.first_layer + len(pieces)))
    return tuple(found)


def with_runs(rules: Iterable[Rule], stack: str, runs: Iterable[tuple[str, int]]) -> tuple[Rule, ...]:
    """Adapts rules to layers in several stacks: repeats the stack's rules for each of them, and keeps the others once.

    Args:
        rules: Rules of a module all of whose layers are in the stack.
        stack: Name of the piece that is the stack.
        runs: The stacks: pairs of the name of the piece and the number of its first layer.
    """
    found: list[Rule] = []
    for rule in rules:
        if rule.piece != stack:
            found.append(rule)
            continue
        for piece, first in runs:
            paths = tuple(f"{piece}/{path.partition('/')[2]}" for path in rule.parameter_paths)
            found.append(dataclasses.replace(rule, parameters=paths, first_layer=first))
    return tuple(found)


def linear_rules(tensor: str, parameter: str, layout: TensorLayout, bias: bool) -> tuple[Rule, ...]:
    """Makes rules of a projection or convolution: `weight` and, if any, `bias` become `kernel` and `bias`."""
    kernel = Rule(f"{tensor}.weight", f"{parameter}/kernel", layout)
    return (kernel, Rule(f"{tensor}.bias", f"{parameter}/bias")) if bias else (kernel,)


def fused_rules(tensor: str, parameter: str, projections: Iterable[str], bias: bool) -> tuple[Rule, ...]:
    """Makes rules of projections that are one tensor, one after the other.

    Args:
        tensor: Name of the tensor, without `.weight`.
        parameter: The path that holds the projections.
        projections: Names of the projections.
        bias: Whether they have biases, which are one tensor too.
    """
    paths = [f"{parameter}/{projection}" for projection in projections]
    kernels = Rule(f"{tensor}.weight", tuple(f"{path}/kernel" for path in paths), Fused())
    biases = Rule(f"{tensor}.bias", tuple(f"{path}/bias" for path in paths), Fused(part_layout=IDENTITY))
    return (kernels, biases) if bias else (kernels,)


def norm_rules(tensor: str, parameter: str, bias: bool) -> tuple[Rule, ...]:
    """Makes rules of a norm: `weight` and, if any, `bias` become `scale` and `bias`."""
    scale = Rule(f"{tensor}.weight", f"{parameter}/scale")
    return (scale, Rule(f"{tensor}.bias", f"{parameter}/bias")) if bias else (scale,)


@dataclasses.dataclass(frozen=True)
class TensorMatch:
    """A rule applied to one layer.

    Attributes:
        tensor_names: Names of the tensors.
        parameter_paths: Whole paths of the parameters, `module/piece/layer/path`.
        parameter_shapes: Shapes of the parameters.
        layout: The conversion of the tensors to the parameters.
    """

    tensor_names: tuple[str, ...]
    parameter_paths: tuple[str, ...]
    parameter_shapes: tuple[Shape, ...]
    layout: TensorLayout

    @property
    def layer(self) -> tuple[str, str, str]:
        """Module, piece and layer that contain all parameters."""
        module, piece, layer, _ = self.parameter_paths[0].split("/", 3)
        return module, piece, layer

    @property
    def paths_in_layer(self) -> tuple[str, ...]:
        """Paths of the parameters in the tree of their layer."""
        return tuple(path.split("/", 3)[3] for path in self.parameter_paths)

    @property
    def tensor_shapes(self) -> tuple[Shape, ...]:
        """Shapes of the tensors."""
        return self.layout.published_shapes(self.parameter_shapes)


def match_rules(rules: Rules, shapes: Mapping[str, Shape]) -> tuple[TensorMatch, ...]:
    """Applies every rule to every layer of its piece.

    Args:
        rules: Rules by module.
        shapes: Shapes of the model's parameters, by `module/piece/layer/path`. Modules without rules are left alone.

    Raises:
        ValueError: The rules are wrong: a path that the module lacks, two rules for one tensor or parameter, a
            parameter without a rule in a piece that has rules, a layout that does not fit. All problems are listed.
    """
    layers: dict[tuple[str, str], dict[str, None]] = {}
    for path in shapes:
        module, piece, layer, _ = path.split("/", 3)
        layers.setdefault((module, piece), {})[layer] = None
    matches: list[TensorMatch] = []
    problems: list[str] = []
    for module, module_rules in rules.items():
        for rule in module_rules:
            if (module, rule.piece) not in layers:
                problems.append(f"{module} has no piece {rule.piece!r}, which {rule.parameters} names")
            for layer in layers.get((module, rule.piece), {}):
                match = _match_layer(rule, module, layer, shapes)
                matches.append(match)
                problems += _match_problems(match, shapes)
    matched_paths = [path for match in matches for path in match.parameter_paths]
    matched_pieces = {tuple(path.split("/", 2)[:2]) for path in matched_paths}
    required_paths = [path for path in shapes if tuple(path.split("/", 2)[:2]) in matched_pieces]
    names = [name for match in matches for name in match.tensor_names]
    problems += [f"no rule gives {path}" for path in required_paths if path not in set(matched_paths)]
    problems += [f"several rules give {path}" for path in _repeated(matched_paths)]
    problems += [f"several rules read {name}" for name in _repeated(names)]
    if problems:
        raise ValueError("the rules do not fit the modules: " + "; ".join(problems))
    return tuple(matches)


def _match_layer(rule: Rule, module: str, layer: str, shapes: Mapping[str, Shape]) -> TensorMatch:
    number = str(rule.first_layer + int(layer))
    names = tuple(name.replace(LAYER, number) for name in rule.tensor_names)
    paths = tuple(f"{module}/{path.replace('/', f'/{layer}/', 1)}" for path in rule.parameter_paths)
    return TensorMatch(names, paths, tuple(shapes.get(path, ()) for path in paths), rule.layout)


def _match_problems(match: TensorMatch, shapes: Mapping[str, Shape]) -> list[str]:
    """Describes the problems of a match: parameters that do not exist, or a layout that does not fit."""
    missing = [path for path in match.parameter_paths if path not in shapes]
    if missing:
        return [f"there is no parameter {', '.join(missing)}"]
    paths = ", ".join(match.parameter_paths)
    try:
        tensors, names = len(match.tensor_shapes), len(match.tensor_names)
    except ValueError as error:
        return [f"{paths}: {error}"]
    return [] if tensors == names else [f"{paths} are {tensors} tensors, but {names} are named"]


def _repeated(values: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return [value for value, count in counts.items() if count > 1]


def require_round_trip(config: Config, read_back: Config, except_fields: tuple[str, ...] = ()) -> None:
    """Checks that a config.json describes the whole configuration written to it, except settings of training.

    Args:
        config: The configuration that was written.
        read_back: The configuration that `read_config` returns for the config.json.
        except_fields: Fields that config.json does not describe; the name is always one.

    Raises:
        ValueError: They differ, so that the published architecture cannot compute the configuration. All fields that
            differ are listed with both values; fields of nested dataclasses have their path.
    """
    config, read_back = without_training_choices(config), without_training_choices(read_back)
    differing = [
        difference
        for field in dataclasses.fields(config)
        if field.name not in ("name", *except_fields)
        for difference in _differences(field.name, getattr(config, field.name), getattr(read_back, field.name))
    ]
    if differing:
        raise ValueError("; ".join(differing))


def _differences(name: str, value: Any, published: Any) -> Iterator[str]:
    """Yields messages for the differing fields of two values: the field itself, or fields of a nested dataclass."""
    if dataclasses.is_dataclass(value) and type(value) is type(published):
        for field in dataclasses.fields(value):
            path = f"{name}.{field.name}"
            yield from _differences(path, getattr(value, field.name), getattr(published, field.name))
    elif value != published:
        yield f"{name} is {value!r}, but the published architecture has {published!r}"
