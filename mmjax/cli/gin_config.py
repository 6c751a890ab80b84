"""Gin configuration: files, bindings that override them, the operative config.

Commands reach these functions through `mmjax.cli`; libraries do not read gin files themselves.
"""

import contextlib
import logging
import pathlib
import re
import sys
import tokenize
import typing
from collections.abc import Callable, Sequence
from typing import Any

import gin
import gin.config
from gin import resource_reader

import configs
from configs.common.errors import UserError
from configs.common.proposals import nearest
from configs.common.whole_files import write_whole
from mmjax.cli import gin_types  # noqa: F401  (registers a check of all values)
from mmjax.cli.gin_errors import gin_message, known_parameters, without_call_chain

CONFIGS = pathlib.Path(configs.__file__).parent
"""The configs package, in which configuration files are looked for."""

OPERATIVE_CONFIG = "operative.gin"
"""File of a workdir with every parameter that the run used."""

Configured = typing.TypeVar("Configured")
Parsed = typing.TypeVar("Parsed")


def _is_packaged_resource(path: str) -> bool:
    """Whether a path names a file in a package, `package.subpackage/name.gin`.

    gin's own check raises TypeError for a folder without `__init__.py`, which is any folder of configurations.
    """
    with contextlib.suppress(TypeError):
        return resource_reader.system_path_file_exists(path)
    return False


del gin.config._FILE_READERS[1:]  # all readers but the reader of plain files
gin.config.register_file_reader(resource_reader.system_path_reader, _is_packaged_resource)

_MACRO_REFERENCE = re.compile(r"%([A-Za-z_][\w/]*)")
_referenced_macros: set[str] = set()  # gin passes the configuration alone to its hooks


def configuration_file(name: str, folder: str = "") -> str:
    """The path of a configuration file; every flag that takes one finds it here.

    Args:
        name: A path, else the name of a file in a folder of the configs package, or in the package; `.gin` at its end
            may be left out.
        folder: The folder of the configs package; empty for the package itself.

    Raises:
        UserError: There is no such file.
    """
    for ending in ("", ".gin"):
        for path in (pathlib.Path(name + ending), CONFIGS / folder / (name + ending), CONFIGS / (name + ending)):
            with contextlib.suppress(OSError, ValueError):  # a name that no file can have
                if path.is_file():
                    return str(path)
    names = _gin_files(folder)
    where = f"configs/{folder}" if folder else "the configs package"
    raise UserError(
        f"there is no gin file {name}, neither here ({pathlib.Path.cwd()}) nor in {where}"
        + (nearest(name, names) or f", which has {', '.join(name for name in names if '/' not in name)}")
    )


def is_packaged(name: str, folder: str = "") -> bool:
    """Whether `configuration_file` finds a file of the configs package by a name."""
    with contextlib.suppress(UserError):
        return pathlib.Path(configuration_file(name, folder)).resolve().is_relative_to(CONFIGS.resolve())
    return False


def _gin_files(folder: str = "") -> list[str]:
    """Names of the configuration files in a folder of the configs package."""
    return sorted(str(path.relative_to(CONFIGS / folder)) for path in (CONFIGS / folder).rglob("*.gin"))


def parse_workdir(workdir: pathlib.Path, bindings: Sequence[str] = ()) -> None:
    """Reads the configuration of the run in a workdir, then bindings that override it.

    Raises:
        UserError: The folder is not the workdir of a run, or a binding is wrong.
    """
    path = workdir / OPERATIVE_CONFIG
    if not path.is_file():
        problem = f"has no {OPERATIVE_CONFIG}" if workdir.is_dir() else "is no folder"
        raise UserError(f"--workdir={workdir} {problem}; give the folder that python -m mmjax.train wrote to")
    parse_gin([str(path)], bindings)


def parse_gin(files: Sequence[str], bindings: Sequence[str] = ()) -> None:
    """Reads configuration files, of which later ones override earlier ones, then bindings, which override all.

    A file includes others by a path from the current folder, from its own folder or from the configs package, and
    imports modules from the current folder too.

    Args:
        files: Paths, or names of files in the configs package.
        bindings: Parameters or macros with their values, such as `TrainConfig.steps = 3`.

    Raises:
        UserError: A file does not exist, or nothing has the name of a binding; the message names the file and line.
    """
    gin.clear_config()
    _referenced_macros.clear()
    logging.getLogger().addFilter(_is_not_a_search_by_gin)
    paths = [configuration_file(gin_file) for gin_file in files]
    if str(pathlib.Path.cwd()) not in sys.path:  # python -m adds it, a console script does not
        sys.path.append(str(pathlib.Path.cwd()))
    folders = [*(str(pathlib.Path(path).parent) for path in paths), str(CONFIGS)]
    for folder in folders:
        gin.add_config_file_search_path(folder)
    for path in paths:
        parsed = _parse(path, lambda path=path: gin.parse_config_file(path))
        _referenced_macros.update(_macros_of(parsed, folders))
    for binding in bindings:
        _parse(f"--gin.{binding}", lambda binding=binding: gin.parse_config(binding))
        _referenced_macros.update(_MACRO_REFERENCE.findall(binding))
    _parse("configuration", gin.finalize)


def _parse(source: str, parse: Callable[[], Parsed]) -> Parsed:
    try:
        return parse()
    except tokenize.TokenError as error:
        raise UserError(f"{source}: {error.args[0]}; is a bracket or a quote left open?") from error
    except (SyntaxError, ValueError, TypeError, NameError, AttributeError, ImportError, OSError, RuntimeError) as error:
        raise UserError(gin_message(source, error, _gin_files())) from error


def _is_not_a_search_by_gin(record: logging.LogRecord) -> bool:
    """Whether a log record is not gin's error that an include is not in one folder; a later folder may have it."""
    return record.module != "resource_reader"


def _macros_of(parsed: gin.config.ParsedConfigFileIncludesAndImports, folders: Sequence[str]) -> set[str]:
    """The macros that a parsed file and its includes refer to, also where another file overrides the binding."""
    candidates = [pathlib.Path(folder) / parsed.filename for folder in ("", *folders)]
    path = next((path for path in candidates if path.is_file()), None)
    with path.open() if path else resource_reader.system_path_reader(parsed.filename) as file:
        text = file.read()
    nested = (_macros_of(include, folders) for include in parsed.includes)
    return set(_MACRO_REFERENCE.findall(text)).union(*nested)


@gin.config.register_finalize_hook
def _refuse_unused_macros(config: dict) -> None:
    """Refuses a macro that nothing refers to: a misspelt one would otherwise be ignored."""
    defined = {scope for scope, selector in config if selector == "gin.macro"}
    for name in sorted(defined - _referenced_macros):
        raise ValueError(f"nothing uses the macro {name}{_proposal_for_macro(name)}")


def _proposal_for_macro(name: str) -> str:
    """Proposes a replacement for a macro that nothing uses: another macro, or the parameter (steps for STEPS)."""
    if macro := nearest(name, _referenced_macros):
        return macro
    parameters = [f"{owner}.{name.lower()}" for owner, known in known_parameters().items() if name.lower() in known]
    if parameters:
        return f"; did you mean {' or '.join(parameters)}?"
    return f"; the configuration's macros are {', '.join(sorted(_referenced_macros)) or 'none'}"


def configured(constructor: Callable[..., Configured]) -> Configured:
    """Calls a constructor with the values that the configuration binds to its parameters.

    Raises:
        UserError: The constructor refuses a value, or a parameter that needs a value has none.
    """
    try:
        configurable = gin.get_configurable(constructor)
    except ValueError:  # no file names it
        configurable = gin.external_configurable(constructor, module=constructor.__module__)
    try:
        return typing.cast(Configured, configurable())
    except (UserError, ValueError, TypeError, RuntimeError) as error:  # gin raises the last for a value that is missing
        raise UserError(f"configuration: {without_call_chain(str(error))}") from error


def bind(constructor: type, path: str, value: Any) -> None:
    """Binds a value over the configuration that was read, so that the operative config has it.

    Args:
        constructor: A dataclass that the configuration makes.
        path: A field of it, such as `steps`, or a field of one of its dataclasses, such as `data.rows`. If the
            configuration gives it no such dataclass, it gets one with defaults.
        value: The value.
    """
    owner, _, name = path.rpartition(".")
    target = constructor.__name__
    with gin.unlock_config():
        if owner:
            if not is_bound(f"{target}.{owner}"):
                _bind_new(constructor, owner, typing.get_type_hints(constructor)[owner])
            reference = gin.query_parameter(f"{target}.{owner}")
            target = "/".join([*reference.scopes, reference.configurable.selector])
        gin.bind_parameter(f"{target}.{name}", value)


def _bind_new(constructor: type, field: str, made: type) -> None:
    """Binds a call of a dataclass to a field, as a file would, so that the operative config can import it."""
    modules = [cls.__module__.rpartition(".") for cls in (constructor, made)]
    imports = [f"from {package} import {module}" for package, _, module in modules]
    (_, _, owner), (_, _, module) = modules
    binding = f"{owner}.{constructor.__name__}.{field} = @{module}.{made.__name__}()"
    gin.parse_config(["from __gin__ import dynamic_registration", *imports, binding])


def is_bound(parameter: str) -> bool:
    """Whether the configuration binds a value to a parameter, such as `Workload.model`."""
    try:
        gin.query_parameter(parameter)
    except ValueError:
        return False
    return True


def bound_value(parameter: str, default: Any) -> Any:
    """The value that the configuration binds to a parameter, such as `TrainConfig.steps`; else a default."""
    return gin.query_parameter(parameter) if is_bound(parameter) else default


def configuration_text() -> str:
    """Everything that the configuration binds, as text."""
    return gin.config_str()


def write_operative_config(workdir: str) -> str:
    """Writes every parameter used so far, defaults included, to a file that `--gin_file` takes.

    Values may be secrets, such as the token of a data set, so nobody but the owner may read the file.

    Returns:
        The path of the file.
    """
    path = pathlib.Path(workdir) / OPERATIVE_CONFIG
    write_whole(path, gin.operative_config_str(), private=True)
    return str(path)
