"""Path patterns with braces and wildcards, expanded to existing files.

Sources take their files as such patterns.
"""

import glob
import itertools
import os
import re
from collections.abc import Sequence

from data.errors import DataError

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_PATHS = 1_000_000  # more are a mistake in a range


def expand_braces(pattern: str) -> list[str]:
    """All paths that a pattern such as `shards-{0000..0012}.tar` or `{train,val}.tar` stands for, in its order.

    A range keeps the width of its first number; several braces give all combinations; braces do not nest.

    Raises:
        DataError: A descending range, an empty choice, or more than a million paths.
    """
    pieces = _BRACES.split(pattern)  # text, choice, text, choice, ..., text
    choices = [[piece] if number % 2 == 0 else _choices(pattern, piece) for number, piece in enumerate(pieces)]
    total = 1
    for options in choices:
        total *= len(options)
    if total > _MAX_PATHS:
        raise DataError(f"{pattern} stands for {total} files, more than {_MAX_PATHS}; check its ranges")
    return ["".join(combination) for combination in itertools.product(*choices)]


def find_files(patterns: str | Sequence[str]) -> tuple[str, ...]:
    """The files that patterns match: braces are expanded, then wildcards (`*`, `?`, `[0-9]`), each in sorted order.

    A path that exists literally is not expanded.

    Raises:
        DataError: A path is missing or a folder, a pattern matches nothing, or a file is matched twice.
    """
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    paths = [path for pattern in listed for path in _files(pattern)]
    if not paths:
        raise DataError("no file is named; give the path of at least one")
    for path in paths:
        check_file(path)
    seen: set[str] = set()
    for path in paths:
        true_path = os.path.realpath(path)
        if true_path in seen:
            raise DataError(f"{path} is named twice in {', '.join(listed)}; name every file once")
        seen.add(true_path)
    return tuple(paths)


def check_file(path: str) -> None:
    """Raises DataError unless the path is a file that is not empty."""
    if os.path.isdir(path):
        raise DataError(f"{path} is a folder where a file is expected; give the path of a file")
    if not os.path.isfile(path):
        raise DataError(f"{path!r} does not exist; check the path")
    if not os.path.getsize(path):
        raise DataError(f"{path} is empty; replace it or leave it out")


def check_folder(path: str) -> None:
    """Raises DataError unless the path is a folder."""
    if not os.path.isdir(path):
        raise DataError(f"{path!r} is not a folder; check the path")


def _files(pattern: str) -> list[str]:
    if os.path.exists(pattern):
        return [pattern]
    paths = []
    for path in expand_braces(pattern):
        if glob.has_magic(path) and "\0" not in path:
            matching = sorted(glob.glob(path))
            if not matching:
                raise DataError(f"no file matches {path}; check the pattern")
            paths += matching
        else:
            paths.append(path)
    return paths


def _choices(pattern: str, braced: str) -> list[str]:
    span = _RANGE.fullmatch(braced)
    if span is None:
        options = braced.split(",")
        if len(options) == 1:
            raise DataError(
                f"{pattern}: {{{braced}}} is neither a range such as {{00..12}} nor a choice such as {{a,b}}"
            )
        return options
    first, last = map(int, span.groups())
    if last < first or last - first >= _MAX_PATHS:
        raise DataError(f"{pattern}: the range {{{braced}}} must ascend, by less than {_MAX_PATHS}")
    return [str(number).zfill(len(span[1])) for number in range(first, last + 1)]
