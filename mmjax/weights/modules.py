"""A published checkpoint beside a model: which of its tensors are which of the model's parameters."""

import dataclasses
import fnmatch
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from configs.architectures import BackboneConfig, GeneratorConfig, ModelConfig
from configs.errors import UserError
from mmjax.models.parameters import abstract_module
from mmjax.models.pieces import model_modules
from mmjax.models.published import registry
from mmjax.models.published.layouts import Shape
from mmjax.models.published.rules import Config, Match, Published, match
from mmjax.weights.folder import Folder, open_folder, read_config, read_pixels

WHOLE = "model"
"""What stands for all parts of a model, where a part could be named."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint: what it is, and its tensors by the names that its rules have.

    Attributes:
        folder: Its files.
        published: Its architecture.
        values: Its config.json.
        config: What that describes.
        names: By the name that a rule has, the name in the files.
    """

    folder: Folder
    published: Published
    values: Mapping[str, Any]
    config: Config
    names: Mapping[str, str]


def open_checkpoint(path: pathlib.Path) -> Checkpoint:
    """Reads config.json and headers.

    Raises:
        UserError: As `read_config`, `open_folder` and `registry.read`.
    """
    values = read_config(path)
    try:
        published, config = registry.read({**read_pixels(path), **values})
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    folder = open_folder(path, published.stem)
    names = {_without_alias(published, name): name for name in folder.tensors}
    return Checkpoint(folder, published, values, config, names)


def _without_alias(published: Published, name: str) -> str:
    for alias, prefix in published.aliases:
        if name.startswith(alias):
            return prefix + name.removeprefix(alias)
    return name


def parts(config: ModelConfig) -> dict[tuple[str, str], str]:
    """The part, such as `vision` or `vision_projector`, that each (module, piece) belongs to."""
    return {(module.name, piece.name): piece.owner for module in model_modules(config) for piece in module.pieces}


def shapes_of(config: ModelConfig) -> dict[str, Shape]:
    """Of every parameter, by `module/piece/layer/path`."""
    trees = {module.name: abstract_module(module) for module in model_modules(config)}
    leaves, _ = jax.tree_util.tree_flatten_with_path(trees)
    return {"/".join(key.key for key in path): leaf.shape for path, leaf in leaves}


def module_config(config: ModelConfig, name: str) -> Config:
    """The architecture of a module.

    Raises:
        UserError: The model has none of the name.
    """
    found = {module.name: module for module in (*config.encoders, config.backbone, *config.generators)}
    if name not in found:
        raise UserError(f"the model has no module {name!r}; it has {', '.join(found)}")
    return found[name]


def module_of_part(config: ModelConfig, part: str) -> str:
    """The module that a part belongs to; `model` for itself.

    Raises:
        UserError: The model has no such part.
    """
    known = {WHOLE: WHOLE} | {owner: module for (module, _), owner in parts(config).items()}
    if part not in known:
        raise UserError(f"the model has no part {part!r}; choose one of {', '.join(known)}")
    return known[part]


def adapted(published: Published, theirs: Config, ours: ModelConfig, module: str) -> Config:
    """Our architecture in the form of theirs: a module's, or theirs with our module in the place of one like it.

    Args:
        published: The architecture of the checkpoint.
        theirs: What its config.json describes.
        ours: Our model.
        module: One of our modules, or `model`.

    Raises:
        UserError: Theirs has no place for it.
    """
    if not issubclass(published.config_type, ModelConfig):
        if module == WHOLE:
            raise UserError(
                f"it holds one module ({published.name}) and not a whole model; name the module, such as "
                f"{(ours.backbone.name, '...')!r}"
            )
        of = module_config(ours, module)
        if not isinstance(of, published.config_type):
            raise UserError(f"it holds a {published.config_type.__name__}, and {module} is a {type(of).__name__}")
        return of
    if module == WHOLE:
        kinds = [[type(encoder).__name__ for encoder in model.encoders] for model in (theirs, ours)]
        if kinds[0] != kinds[1]:
            raise UserError(f"its encoders are {kinds[0] or 'none'}, and the model's are {kinds[1] or 'none'}")
        generators = ours.generators if theirs.generators else ()
        return dataclasses.replace(theirs, encoders=ours.encoders, backbone=ours.backbone, generators=generators)
    of = module_config(ours, module)
    if of is ours.backbone:
        return dataclasses.replace(theirs, backbone=of)
    for field in ("encoders", "generators"):
        held = getattr(theirs, field)
        like = [number for number, each in enumerate(held) if type(each) is type(of)]
        if like:
            (place, *_) = [number for number in like if held[number].name == of.name] or like
            return dataclasses.replace(theirs, **{field: (*held[:place], of, *held[place + 1 :])})
    raise UserError(f"it holds no {type(of).__name__}, which {module} is")


def differences(published: Published, theirs: Config, ours: Config) -> list[str]:
    """What config.json would say of ours that it doesn't say of theirs; our names of modules are no difference."""
    there, here = (_flat(registry.write(published, config)) for config in (theirs, ours))
    return [
        f"{key} is {there.get(key)!r} there and {here.get(key)!r} here"
        for key in {**there, **here}
        if there.get(key) != here.get(key)
    ]


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return flat


def matches_of(published: Published, config: Config, ours: ModelConfig) -> tuple[Match, ...]:
    """The tensors and parameters of a checkpoint of `config`, a module of ours or a model in the form of theirs."""
    host = config if isinstance(config, ModelConfig) else ours
    return match(published.rules(config), shapes_of(host))


def is_ignored(published: Published, config: Config, name: str) -> bool:
    """Whether a tensor without a rule is nothing of ours on purpose."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in published.ignored(config))


def of_parts(matches: Iterable[Match], owners: Mapping[tuple[str, str], str], wanted: str) -> tuple[Match, ...]:
    """The matches of a part; all of them for `model`."""
    return tuple(of for of in matches if wanted in (WHOLE, owners.get(of.layer[:2])))


def held_parts(matches: Iterable[Match], host: ModelConfig) -> tuple[str, ...]:
    """The parts of a model that matches give."""
    owners = parts(host)
    return tuple(dict.fromkeys(owners[of.layer[:2]] for of in matches))


def parts_in(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The parts that a checkpoint is of, in a model like itself."""
    host = standing_alone(checkpoint.config)
    return held_parts(matches_of(checkpoint.published, checkpoint.config, host), host)


def standing_alone(config: Config) -> ModelConfig:
    """A module's architecture as a model of which it is a part."""
    if isinstance(config, ModelConfig):
        return config
    if isinstance(config, BackboneConfig):
        return ModelConfig((), config, ())
    if isinstance(config, GeneratorConfig):
        return ModelConfig((), BackboneConfig(), (config,))
    return ModelConfig((config,), BackboneConfig(), ())
