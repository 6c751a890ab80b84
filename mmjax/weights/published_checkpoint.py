"""The correspondence between the tensors of a published checkpoint and the parameters of a model.

Initialisation, export, compatibility checks and the command `mmjax.convert` open checkpoints by it.
"""

import dataclasses
import fnmatch
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from configs.architectures import BackboneConfig, GeneratorConfig, ModelConfig
from configs.common.errors import UserError
from configs.training_choices import without_training_choices
from mmjax.models.model import model_modules
from mmjax.models.structure.parameters import abstract_module_parameters
from mmjax.weights.folder import CheckpointFolder, open_folder, read_config_json
from mmjax.weights.processor_config import check_processor, pixel_normalisation, read_processor_config
from mmjax.weights.published.rules import Config, PublishedArchitecture, TensorMatch, match_rules
from mmjax.weights.published.tensor_layouts import Shape
from mmjax.weights.registry import read_architecture, write_architecture

WHOLE_MODEL = "model"
"""Name that stands for all parts of a model, where the name of a part is expected."""


@dataclasses.dataclass(frozen=True)
class PublishedCheckpoint:
    """A published checkpoint, of which only config.json and the tensors' headers have been read.

    Attributes:
        folder: The folder with its files.
        architecture: Its architecture.
        config_json: Contents of config.json.
        config: The configuration that config.json describes.
        tensor_names: Name of each tensor in the files, by the name that the architecture's rules use.
    """

    folder: CheckpointFolder
    architecture: PublishedArchitecture
    config_json: Mapping[str, Any]
    config: Config
    tensor_names: Mapping[str, str]


def open_checkpoint(path: pathlib.Path, reads_media: bool = True) -> PublishedCheckpoint:
    """Reads config.json and the headers of a folder.

    Args:
        path: The folder.
        reads_media: Whether encoders are read from it, so that its processor files are checked.

    Raises:
        UserError: As `read_config_json`, `open_folder`, `read_architecture` and `check_processor`.
    """
    config_json = read_config_json(path)
    try:
        processors = read_processor_config(path) if reads_media else ()
        architecture, config = read_architecture({**pixel_normalisation(processors), **config_json})
        check_processor(processors, config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    folder = open_folder(path, architecture.file_stem, index_first="_class_name" in config_json)
    tensor_names = {replace_alias(architecture, name): name for name in folder.tensors}
    shapes = {name: folder.tensors[file_name].shape for name, file_name in tensor_names.items()}
    best = _best_fitting(architecture, config, shapes)
    return PublishedCheckpoint(folder, best, config_json, config, tensor_names)


def _best_fitting(
    architecture: PublishedArchitecture, config: Config, shapes: Mapping[str, Shape]
) -> PublishedArchitecture:
    """Chooses the architecture or alternative whose rules give the right shape to the most tensors."""
    if not architecture.alternatives:
        return architecture

    def fitting_tensors(candidate: PublishedArchitecture) -> int:
        matches = checkpoint_matches(candidate, config, as_model(config))
        expected = {
            n: shape for each in matches for n, shape in zip(each.tensor_names, each.tensor_shapes, strict=True)
        }
        return sum(shapes.get(name) == shape for name, shape in expected.items())

    return max((architecture, *architecture.alternatives), key=fitting_tensors)


def replace_alias(architecture: PublishedArchitecture, name: str) -> str:
    """Returns the name that an architecture's rules use for a tensor of a file."""
    for alias, prefix in architecture.aliases:
        if name.startswith(alias):
            return prefix + name.removeprefix(alias)
    return name


def parts_by_piece(config: ModelConfig) -> dict[tuple[str, str], str]:
    """Returns the part, such as `vision` or `vision_projector`, to which each (module, piece) of a model belongs."""
    return {(module.name, piece.name): piece.part for module in model_modules(config) for piece in module.pieces}


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Returns the shapes of all parameters of a model, by `module/piece/layer/path`."""
    trees = {module.name: abstract_module_parameters(module) for module in model_modules(config)}
    leaves, _ = jax.tree_util.tree_flatten_with_path(trees)
    return {"/".join(key.key for key in path): leaf.shape for path, leaf in leaves}


def module_config(config: ModelConfig, name: str) -> Config:
    """Returns the configuration of a module of a model.

    Raises:
        UserError: The model has no module of the name.
    """
    modules = {module.name: module for module in (*config.encoders, config.backbone, *config.generators)}
    if name not in modules:
        raise UserError(f"the model has no module {name!r}; it has {', '.join(modules)}")
    return modules[name]


def module_of_part(config: ModelConfig, part: str) -> str:
    """Returns the module to which a part belongs; `model` for `model`.

    Raises:
        UserError: The model has no such part.
    """
    modules = {WHOLE_MODEL: WHOLE_MODEL}
    modules |= {part_name: module for (module, _), part_name in parts_by_piece(config).items()}
    if part not in modules:
        raise UserError(f"the model has no part {part!r}; choose one of {', '.join(modules)}")
    return modules[part]


def config_in_published_form(
    architecture: PublishedArchitecture, published_config: Config, model: ModelConfig, module: str
) -> Config:
    """Returns the configuration that a checkpoint with the model's weights would have.

    For an architecture of one module that is the configuration of the model's module; for an architecture of a whole
    model it is the published configuration, in which the model's module replaces the corresponding one.

    Args:
        architecture: Architecture of the checkpoint.
        published_config: Configuration that the checkpoint's config.json describes.
        model: The model.
        module: Name of one of its modules, or `model`.

    Raises:
        UserError: The checkpoint has no such module.
    """
    if not issubclass(architecture.config_type, ModelConfig):
        if module == WHOLE_MODEL:
            raise UserError(
                f"it holds one module ({architecture.name}) and not a whole model; name the module, such as "
                f"{(model.backbone.name, '...')!r}"
            )
        config = module_config(model, module)
        if not isinstance(config, architecture.config_type):
            raise UserError(
                f"it holds a {architecture.config_type.__name__}, and {module} is a {type(config).__name__}"
            )
        return config
    if module == WHOLE_MODEL:
        published_kinds, kinds = (_encoder_kinds(published_config), _encoder_kinds(model))
        if published_kinds != kinds:
            raise UserError(f"its encoders are {published_kinds or 'none'}, and the model's are {kinds or 'none'}")
        generators = model.generators if published_config.generators else ()
        return dataclasses.replace(
            published_config, encoders=model.encoders, backbone=model.backbone, generators=generators
        )
    config = module_config(model, module)
    if config is model.backbone:
        return dataclasses.replace(published_config, backbone=config)
    for field in ("encoders", "generators"):
        modules = getattr(published_config, field)
        same_kind = [number for number, other in enumerate(modules) if type(other) is type(config)]
        if same_kind:
            same_name = [number for number in same_kind if modules[number].name == config.name]
            (replaced, *_) = same_name or same_kind
            modules = (*modules[:replaced], config, *modules[replaced + 1 :])
            return dataclasses.replace(published_config, **{field: modules})
    raise UserError(f"it holds no {type(config).__name__}, which {module} is")


def _encoder_kinds(model: ModelConfig) -> list[str]:
    return [type(encoder).__name__ for encoder in model.encoders]


def published_backbone(published_config: Config) -> BackboneConfig | None:
    """Returns the backbone that a checkpoint's configuration describes; None if it has none."""
    backbone = published_config.backbone if isinstance(published_config, ModelConfig) else published_config
    return backbone if isinstance(backbone, BackboneConfig) else None


def with_published_values(model: ModelConfig, published_config: Config, fields: Iterable[str]) -> ModelConfig:
    """Returns the model with a checkpoint's values of some backbone fields; unchanged if that has no backbone."""
    published = published_backbone(published_config)
    if published is None:
        return model
    values = {field: getattr(published, field) for field in fields}
    return dataclasses.replace(model, backbone=dataclasses.replace(model.backbone, **values))


def config_differences(architecture: PublishedArchitecture, published_config: Config, config: Config) -> list[str]:
    """Returns the keys of config.json that differ between a checkpoint's configuration and a model's, with both values.

    Keys for the training of a model are not compared: they do not change the meaning of weights.
    """
    return [
        f"{key} is {published!r} in the checkpoint and {ours!r} in the model"
        for key, (published, ours) in changed_values(architecture, published_config, config).items()
    ]


def changed_values(
    architecture: PublishedArchitecture, published_config: Config, config: Config
) -> dict[str, tuple[Any, Any]]:
    """Returns published and own values by the differing keys of config.json, such as `text_config.vocab_size`."""
    compared = map(without_training_choices, (published_config, config))
    published_values, model_values = (_flatten(write_architecture(architecture, each)) for each in compared)
    return {
        key: (published_values.get(key), model_values.get(key))
        for key in {**published_values, **model_values}
        if published_values.get(key) != model_values.get(key)
    }


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def checkpoint_matches(
    architecture: PublishedArchitecture, config: Config, model: ModelConfig
) -> tuple[TensorMatch, ...]:
    """Matches the tensors of a checkpoint with parameters.

    Args:
        architecture: Architecture of the checkpoint.
        config: Its configuration, as `config_in_published_form` returns it.
        model: The model to which a module's configuration belongs.
    """
    described = config if isinstance(config, ModelConfig) else model
    return match_rules(architecture.rules(config), parameter_shapes(described))


def is_ignored_tensor(architecture: PublishedArchitecture, config: Config, name: str) -> bool:
    """Whether a tensor that no rule names has no parameter on purpose."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in architecture.ignored(config))


def matches_of_part(
    matches: Iterable[TensorMatch], parts: Mapping[tuple[str, str], str], part: str
) -> tuple[TensorMatch, ...]:
    """Returns the matches whose parameters belong to a part; all matches for `model`.

    Args:
        matches: Matches of a checkpoint.
        parts: The part of each (module, piece), as of `parts_by_piece`.
        part: Name of a part, or `model`.
    """
    return tuple(match for match in matches if part in (WHOLE_MODEL, parts.get(match.layer[:2])))


def parts_of_matches(matches: Iterable[TensorMatch], model: ModelConfig) -> tuple[str, ...]:
    """Returns the parts of a model that have parameters among the matches."""
    parts = parts_by_piece(model)
    return tuple(dict.fromkeys(parts[match.layer[:2]] for match in matches))


def checkpoint_parts(checkpoint: PublishedCheckpoint) -> tuple[str, ...]:
    """Returns the parts of which a checkpoint has weights, in a model of its own architecture."""
    model = as_model(checkpoint.config)
    return parts_of_matches(checkpoint_matches(checkpoint.architecture, checkpoint.config, model), model)


def as_model(config: Config) -> ModelConfig:
    """Makes a model that contains the module of a configuration; a ModelConfig is returned unchanged."""
    if isinstance(config, ModelConfig):
        return config
    if isinstance(config, BackboneConfig):
        return ModelConfig((), config, ())
    if isinstance(config, GeneratorConfig):
        return ModelConfig((), BackboneConfig(), (config,))
    depth = max(BackboneConfig.depth, len(config.tapped_layers) + 1)  # blocks that take the tapped layers' outputs
    return ModelConfig((config,), BackboneConfig(depth=depth), ())
