"""A published checkpoint beside a model: which of its tensors are which of the model's parameters."""

import dataclasses
import fnmatch
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from configs.architectures import BackboneConfig, GeneratorConfig, ModelConfig
from configs.errors import UserError
from mmjax.models.model import model_modules
from mmjax.models.structure.parameters import abstract_module_parameters
from mmjax.weights import registry
from mmjax.weights.folder import CheckpointFolder, open_folder, read_config_json, read_pixel_normalisation
from mmjax.weights.published.rules import Config, PublishedArchitecture, TensorMatch, match_rules
from mmjax.weights.published.tensor_layouts import Shape

WHOLE_MODEL = "model"
"""What stands for all parts of a model, where a part could be named."""


@dataclasses.dataclass(frozen=True)
class PublishedCheckpoint:
    """A published checkpoint: what it is, and its tensors by the names that its rules have.

    Attributes:
        folder: Its files.
        published: Its architecture.
        values: Its config.json.
        config: What that describes.
        names: By the name that a rule has, the name in the files.
    """

    folder: CheckpointFolder
    architecture: PublishedArchitecture
    config_json: Mapping[str, Any]
    config: Config
    tensor_names: Mapping[str, str]


def open_checkpoint(path: pathlib.Path) -> PublishedCheckpoint:
    """Reads config.json and headers.

    Raises:
        UserError: As `read_config`, `open_folder` and `registry.read`.
    """
    values = read_config_json(path)
    try:
        published, config = registry.read_architecture({**read_pixel_normalisation(path), **values})
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    folder = open_folder(path, published.file_stem)
    names = {_without_alias(published, name): name for name in folder.tensors}
    return PublishedCheckpoint(folder, published, values, config, names)


def _without_alias(published: PublishedArchitecture, name: str) -> str:
    for alias, prefix in published.aliases:
        if name.startswith(alias):
            return prefix + name.removeprefix(alias)
    return name


def parts_by_piece(config: ModelConfig) -> dict[tuple[str, str], str]:
    """The part, such as `vision` or `vision_projector`, that each (module, piece) belongs to."""
    return {(module.name, piece.name): piece.part for module in model_modules(config) for piece in module.pieces}


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Of every parameter, by `module/piece/layer/path`."""
    trees = {module.name: abstract_module_parameters(module) for module in model_modules(config)}
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
    known = {WHOLE_MODEL: WHOLE_MODEL} | {owner: module for (module, _), owner in parts_by_piece(config).items()}
    if part not in known:
        raise UserError(f"the model has no part {part!r}; choose one of {', '.join(known)}")
    return known[part]


def config_in_published_form(
    published: PublishedArchitecture, theirs: Config, ours: ModelConfig, module: str
) -> Config:
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
        if module == WHOLE_MODEL:
            raise UserError(
                f"it holds one module ({published.name}) and not a whole model; name the module, such as "
                f"{(ours.backbone.name, '...')!r}"
            )
        of = module_config(ours, module)
        if not isinstance(of, published.config_type):
            raise UserError(f"it holds a {published.config_type.__name__}, and {module} is a {type(of).__name__}")
        return of
    if module == WHOLE_MODEL:
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


def config_differences(published: PublishedArchitecture, theirs: Config, ours: Config) -> list[str]:
    """What config.json would say of ours that it doesn't say of theirs; our names of modules are no difference."""
    there, here = (_flat(registry.write_architecture(published, config)) for config in (theirs, ours))
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


def checkpoint_matches(published: PublishedArchitecture, config: Config, ours: ModelConfig) -> tuple[TensorMatch, ...]:
    """The tensors and parameters of a checkpoint of `config`, a module of ours or a model in the form of theirs."""
    host = config if isinstance(config, ModelConfig) else ours
    return match_rules(published.rules(config), parameter_shapes(host))


def is_ignored_tensor(published: PublishedArchitecture, config: Config, name: str) -> bool:
    """Whether a tensor without a rule is nothing of ours on purpose."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in published.ignored(config))


def matches_of_part(
    matches: Iterable[TensorMatch], owners: Mapping[tuple[str, str], str], wanted: str
) -> tuple[TensorMatch, ...]:
    """The matches of a part; all of them for `model`."""
    return tuple(of for of in matches if wanted in (WHOLE_MODEL, owners.get(of.layer[:2])))


def parts_of_matches(matches: Iterable[TensorMatch], host: ModelConfig) -> tuple[str, ...]:
    """The parts of a model that matches give."""
    owners = parts_by_piece(host)
    return tuple(dict.fromkeys(owners[of.layer[:2]] for of in matches))


def checkpoint_parts(checkpoint: PublishedCheckpoint) -> tuple[str, ...]:
    """The parts that a checkpoint is of, in a model like itself."""
    host = as_model(checkpoint.config)
    return parts_of_matches(checkpoint_matches(checkpoint.architecture, checkpoint.config, host), host)


def as_model(config: Config) -> ModelConfig:
    """A module's architecture as a model of which it is a part."""
    if isinstance(config, ModelConfig):
        return config
    if isinstance(config, BackboneConfig):
        return ModelConfig((), config, ())
    if isinstance(config, GeneratorConfig):
        return ModelConfig((), BackboneConfig(), (config,))
    return ModelConfig((config,), BackboneConfig(), ())
