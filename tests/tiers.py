"""The tiers of the tests: what each proves, and which tests belong to it.

A test without a marker belongs to the default tier, which `python -m pytest` runs: everything on the host, every layer
against its reference, and one engine test a feature, in this process. The others are run by their marker, as in
`python -m pytest -m layouts`. A file of one tier begins with `pytestmark = pytest.mark.TIER`. A file is not imported
where none of the tiers that it names is selected: to import all takes half a minute.
"""

import functools
import multiprocessing.process
import pathlib
import re
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.expression import Expression
from _pytest.mark.structures import ParameterSet

TIERS = {
    "layouts": "products of features: engines, verification, chains, colocated, compiled, random plans, kernel options",
    "runs": "whole training runs in this process: evaluation, signals, resuming, new orders, sources, examples",
    "processes": "all that starts processes: commands as users run them, workers, kill -9, training in up to eight",
    "parity": "comparisons with published models; needs the extra parity",
    "pages": "HTML pages in a headless Chromium: their pictures beside stored ones, contrast, widths",
    "aot": "compiles for H100s without one; needs the extra aot",
}
"""By marker, what its tests prove."""

_WHOLE_FILE = re.compile(r"^pytestmark = \[?pytest\.mark\.(\w+)", re.MULTILINE)
_NAMED = re.compile(r"\bpytest\.mark\.(\w+)")


def tier_of_file(path: pathlib.Path) -> str | None:
    """The tier to which all tests of a file belong; None if its tests say so one by one."""
    match = _WHOLE_FILE.search(path.read_text())
    return match[1] if match and match[1] in TIERS else None


@functools.cache
def tiers_of_file(path: pathlib.Path) -> frozenset[str]:
    """The tiers to which tests of a file may belong, by its text: `default` unless all are of another."""
    if tier := tier_of_file(path):
        return frozenset({tier})
    text = path.read_text()
    named = set(_NAMED.findall(text)) & set(TIERS)
    return frozenset({"default", *named, *(["layouts"] if first_in_default.__name__ in text else [])})


@functools.cache
def is_selected(tier: str, expression: str) -> bool:
    """Whether the expression of `-m` selects a test that has a tier's marker and no other."""
    return not expression or Expression.compile(expression).evaluate(lambda name, **_: name == tier)


def tier_of(item: pytest.Item) -> str:
    """The tier of a test.

    Raises:
        pytest.UsageError: It has the markers of two, or one that its file does not name.
    """
    named = [tier for tier in TIERS if item.get_closest_marker(tier)]
    if len(named) > 1:
        raise pytest.UsageError(f"{item.nodeid} has the markers of {len(named)} tiers, {' and '.join(named)}: keep one")
    if named and named[0] not in tiers_of_file(item.path):
        raise pytest.UsageError(f"{item.nodeid} is of a tier that its file does not name: write pytest.mark.{named[0]}")
    return named[0] if named else "default"


class ProcessStarts:
    """Counts the Python processes that this one starts, by `subprocess` or by `multiprocessing`.

    Other programs, such as a synthesizer of speech, do not count.
    """

    def __init__(self) -> None:
        self._count = 0
        sys.addaudithook(self._see)
        start = multiprocessing.process.BaseProcess.start

        @functools.wraps(start)
        def counted(process: multiprocessing.process.BaseProcess) -> None:
            self._count += 1
            start(process)

        multiprocessing.process.BaseProcess.start = counted

    def take(self) -> int:
        """How many were started since the last call."""
        taken, self._count = self._count, 0
        return taken

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            self._count += pathlib.Path(str(arguments[0])).name.startswith(("python", "mmjax"))


def first_in_default(values: Iterable[Any]) -> list[Any]:
    """Parameters of a test of which the first belongs to the default tier, and the others to `layouts`."""
    first, *others = values
    return [first, *(_of_layouts(value) for value in others)]


def _of_layouts(value: Any) -> Any:
    if not isinstance(value, ParameterSet):
        value = pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)
    return value._replace(marks=[*value.marks, pytest.mark.layouts])
