"""What the command lines share: the order of start-up, gin configuration, and errors without tracebacks.

An entry point imports this module first and the library inside its main function, so that nothing is imported before
the checks here have passed:

    from mmjax import cli

    def main() -> None:
        cli.parse_gin("quickstart.gin")
        from mmjax.training import experiment
        config = cli.configured(experiment.ExperimentConfig)

    if __name__ == "__main__":
        cli.run(main)
"""

from mmjax.cli import import_guard as shadowing

shadowing.refuse_shadowed_packages()  # before the imports below can take a stranger's package for ours

import difflib  # noqa: E402
import logging  # noqa: E402
import pathlib  # noqa: E402
import re  # noqa: E402
import sys  # noqa: E402
import tokenize  # noqa: E402
import typing  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402

import gin  # noqa: E402
from absl import app, flags  # noqa: E402
from gin import resource_reader  # noqa: E402

import configs  # noqa: E402
from configs.errors import UserError  # noqa: E402
from mmjax.cli import distributed as process  # noqa: E402

CONFIGS = pathlib.Path(configs.__file__).parent
OPERATIVE_CONFIG = "operative.gin"
USAGE_ERROR = 2

_GIN_FILES = flags.DEFINE_multi_string(
    "gin_file", [], "Configuration file: a path, or the name of a file in the configs package. Repeatable; later wins."
)
_GIN_BINDINGS = flags.DEFINE_multi_string("gin_bindings", [], "What --gin.NAME=VALUE becomes: one gin binding.")

Configured = typing.TypeVar("Configured")
Parsed = typing.TypeVar("Parsed")

_REFERENCE = re.compile(r"%([A-Za-z_][\w/]*)")
_macros_in_use: set[str] = set()  # gin hands its hooks the configuration only


def run(main: Callable[[], int | None], argv: Sequence[str] | None = None, distributed: bool = True) -> typing.NoReturn:
    """Prepares this process, runs `main` and exits with what it returns (0 for None).

    Args:
        main: Reads its flags, parses gin, imports the library and does the work.
        argv: The program and its arguments; `sys.argv` if not given.
        joins: Whether the tasks of a launcher are one run of jax; if not, each stands alone.
    """
    try:
        parse_flags(sys.argv if argv is None else argv)
        process.ensure_cpu_devices()
        if distributed:
            process.initialize_distributed()
        code = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USAGE_ERROR
    sys.exit(code)


def parse_flags(argv: Sequence[str]) -> None:
    """Parses absl flags anew, where `--gin.NAME=VALUE` stands for one gin binding.

    Raises:
        UserError: An unknown flag, a bad value, or an argument that is no flag.
    """
    arguments = []
    for argument in argv:
        name, equals, value = argument.partition("=")
        if name.startswith("--gin."):
            if not equals:
                raise UserError(f"{argument} has no value: write {argument}=VALUE")
            argument = f"--gin_bindings={name.removeprefix('--gin.')} = {value}"
        arguments.append(argument)
    app.define_help_flags()
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()  # or what an earlier call set would stand
    try:
        rest = flags.FLAGS(arguments)[1:]
    except flags.Error as error:
        raise UserError(f"{error}. --help lists the flags") from error
    if rest:
        raise UserError(f"{rest[0]!r} is not a flag: flags are written --name=value. --help lists them")


def _resolve(gin_file: str) -> str:
    """The path of a configuration file: as it stands, else in the configs package."""
    for path in (pathlib.Path(gin_file), CONFIGS / gin_file):
        if path.is_file():
            return str(path)
    names = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.gin"))
    raise UserError(
        f"--gin_file={gin_file}: there is no such file here ({pathlib.Path.cwd()}) nor in the configs package, "
        f"which has {', '.join(names) or 'none'}"
    )


def parse_operative_config(workdir: str) -> None:
    """Reads the configuration that a run wrote down, with `--gin.NAME=VALUE` on top.

    Raises:
        UserError: `--gin_file` is given: it would stand for another run's.
    """
    if _GIN_FILES.value:
        raise UserError(
            f"--gin_file={_GIN_FILES.value[0]}: the run in {workdir} has written down its own configuration; leave it "
            "out, and change single values by --gin.NAME=VALUE"
        )
    parse_gin(str(pathlib.Path(workdir) / OPERATIVE_CONFIG))


def parse_gin(default_gin_file: str, *before: str) -> None:
    """Reads the configuration files of `--gin_file` (or the default), then the `--gin.NAME=VALUE` overrides.

    A file includes others by a path from here, from its own folder or from the configs package. The files `before` are
    read first, so that those of the user win.

    Raises:
        UserError: A file that is not there, or a name that nothing has; the message says in which file and line.
    """
    gin.clear_config()
    _macros_in_use.clear()
    logging.getLogger().addFilter(_is_not_a_search_by_gin)
    paths = [_resolve(gin_file) for gin_file in (*before, *(_GIN_FILES.value or [default_gin_file]))]
    folders = [*(str(pathlib.Path(path).parent) for path in paths), str(CONFIGS)]
    for folder in folders:
        gin.add_config_file_search_path(folder)
    for path in paths:
        parsed = _parse(path, lambda path=path: gin.parse_config_file(path))
        _macros_in_use.update(_referenced_macros(parsed, folders))
    for binding in _GIN_BINDINGS.value:
        _parse(f"--gin.{binding}", lambda binding=binding: gin.parse_config(binding))
        _macros_in_use.update(_REFERENCE.findall(binding))
    _parse("configuration", gin.finalize)


def _parse(source: str, parse: Callable[[], Parsed]) -> Parsed:
    try:
        return parse()
    except SyntaxError as error:
        where = f"{error.filename or source}, line {error.lineno}: {(error.text or '').strip()}"
        reason = error.msg.splitlines()[-1].strip(" .")  # the lines before it name Python's own objects
        raise UserError(f"{where}: {reason}. Values are Python literals: text stands in quotes") from error
    except tokenize.TokenError as error:
        raise UserError(f"{source}: {error.args[0]}; is a bracket or a quote left open?") from error
    except (ValueError, TypeError, NameError, AttributeError, ImportError, OSError) as error:
        raise UserError(f"{source}: {error}") from error


def _is_not_a_search_by_gin(record: logging.LogRecord) -> bool:
    """gin logs an error for every folder in which it looks for an include in vain, even if the next one has it."""
    return record.module != "resource_reader"


def _referenced_macros(parsed: gin.config.ParsedConfigFileIncludesAndImports, folders: Sequence[str]) -> set[str]:
    """The macros that a parsed file and what it includes refer to, overridden references too."""
    candidates = [pathlib.Path(folder) / parsed.filename for folder in ("", *folders)]
    path = next((path for path in candidates if path.is_file()), None)
    with path.open() if path else resource_reader.system_path_reader(parsed.filename) as file:
        text = file.read()
    nested = (_referenced_macros(include, folders) for include in parsed.includes)
    return set(_REFERENCE.findall(text)).union(*nested)


@gin.config.register_finalize_hook
def _refuse_unused_macros(config: dict) -> None:
    """A misspelt macro would otherwise change nothing and say nothing."""
    defined = {scope for scope, selector in config if selector == "gin.macro"}
    for name in sorted(defined - _macros_in_use):
        close = difflib.get_close_matches(name, _macros_in_use, n=1)
        raise ValueError(f"nothing uses the macro {name}" + (f"; did you mean {close[0]}?" if close else ""))


def configured(constructor: Callable[..., Configured]) -> Configured:
    """Calls `constructor` with what the configuration binds to its parameters.

    Raises:
        UserError: A value that the constructor refuses, or a parameter without one.
    """
    try:
        configurable = gin.get_configurable(constructor)
    except ValueError:  # no file names it
        configurable = gin.external_configurable(constructor, module=constructor.__module__)
    try:
        return configurable()
    except (ValueError, TypeError, RuntimeError) as error:  # gin raises the last for a value that has to be given
        raise UserError(f"configuration: {error}") from error


def is_bound(parameter: str) -> bool:
    """Whether the configuration gives a value to a parameter, such as `Workload.model`."""
    try:
        gin.query_parameter(parameter)
    except ValueError:
        return False
    return True


def write_operative_config(workdir: str) -> str:
    """Writes every parameter that was used so far, defaults included, as a file that `--gin_file` takes.

    Returns:
        The path of the file.
    """
    path = pathlib.Path(workdir) / OPERATIVE_CONFIG
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(gin.operative_config_str())
    return str(path)
