"""gin's errors as one line that names the file, the line and the nearest known name; `gin_config` raises them."""

import inspect
import pathlib
import re
from collections.abc import Sequence

import gin.config

from configs.common.proposals import nearest

_CALL = re.compile(r"\n\s*In call to configurable .*")
_PLACE = re.compile(r'In file "(?P<file>.*)", line (?P<line>\d+)')
_UNKNOWN = re.compile(r"No configurable matching (?:reference )?'@?(?P<name>[^'()]*)")
_PARAMETER = re.compile(r"Configurable '(?P<name>.*)' doesn't have a parameter named '(?P<parameter>.*)'")
_ATTRIBUTE = re.compile(r"Couldn't resolve selector (?P<selector>.*); <module '(?P<module>[^']*)'.* has no attribute")
_MACRO = re.compile(r"No bindings specified for '(?P<macro>.*)/gin\.macro'")
_MODULE = re.compile(r"No module named '(?P<module>[^']*)'")
_FILE = re.compile(r"Unable to open file: (?P<file>.*)\. Searched config paths")


def gin_message(source: str, error: Exception, files: Sequence[str]) -> str:
    """Returns one line for an error that gin raised.

    Args:
        source: The file or the binding that was read.
        error: The error.
        files: Names of the configuration files that there are.
    """
    if isinstance(error, SyntaxError):
        where = f"{error.filename or source}, line {error.lineno}: {(error.text or '').strip()}"
        reason = error.msg.splitlines()[-1].strip(" .")  # the lines before it name Python's own objects
        return f"{where}: {reason}. Values are Python literals: text is written in quotes"
    text = str(error)
    place = _PLACE.search(text)
    where = f"{place['file']}, line {place['line']}" if place else source
    return f"{where}: {_reason(text, files)}"


def without_call_chain(message: str) -> str:
    """Removes the lines of a message in which gin names the configurable that it was calling."""
    return _CALL.sub("", message)


def known_parameters() -> dict[str, list[str]]:
    """Parameters of everything that the configuration can bind, by the name of the class or function."""
    known = [configurable for configurable in gin.config._INVERSE_REGISTRY.values() if configurable.module != "gin"]
    return {configurable.name: list(inspect.signature(configurable.wrapped).parameters) for configurable in known}


def _reason(text: str, files: Sequence[str]) -> str:
    first = text.splitlines()[0].rstrip(" .")
    if match := _PARAMETER.search(first):
        name = match["name"].rpartition(".")[2]
        known = known_parameters()[name]
        return f"{name} has no parameter {match['parameter']}" + (
            nearest(match["parameter"], known) or f"; it has {', '.join(known)}"
        )
    if match := _UNKNOWN.search(first):
        name = match["name"].rpartition(".")[2]
        return f"no class or function of the configuration has the name {name}{nearest(name, known_parameters())}"
    if match := _ATTRIBUTE.search(first):
        name = match["selector"].rpartition(".")[2]
        return f"{match['module']} has no attribute {name}{nearest(name, known_parameters())}"
    if match := _MACRO.search(first):
        return f"the macro {match['macro']} is used and has no value"
    if match := _MODULE.search(first):
        folder = pathlib.Path.cwd()
        return f"No module named {match['module']!r} is in the current folder, {folder}, on PYTHONPATH, or installed"
    if match := _FILE.search(first):
        return f"there is no file {match['file']} to include{nearest(match['file'], files)}"
    return first
