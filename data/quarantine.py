"""Quarantine: the samples that are refused, each counted, logged and listed once."""

import json
import logging
import os
import pathlib
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from data.errors import DataError

_LOG = logging.getLogger(__name__)
_MAX_NAMED = 10  # samples that an error lists


class QuarantineEntry(NamedTuple):
    """A refused sample.

    Attributes:
        source: Name of its source.
        key: Its key within the source.
        reason: Why it cannot be used.
    """

    source: str
    key: str
    reason: str


class Quarantine:
    """The samples that are refused because they cannot be used; threads may share it.

    The limit compares the distinct refused samples of a source with the whole source. Whether it is exceeded therefore
    depends on the data alone, not on how much of it was read.
    """

    def __init__(
        self, sizes: Mapping[str, int], max_share: float | None, setting: str = "Quarantine.max_share"
    ) -> None:
        """Creates an empty quarantine.

        Args:
            sizes: Number of samples of every source, by name. A source may be a part of a data set, such as a kind.
            max_share: Largest fraction of a source that may be refused; None for no limit.
            setting: Name of the setting that `max_share` comes from, for messages.

        Raises:
            DataError: `max_share` is outside [0, 1).
        """
        if max_share is not None and not 0 <= max_share < 1:
            raise DataError(f"{setting} is {max_share}; it must be in [0, 1)")
        self._sizes = dict(sizes)
        self._max_share, self._setting = max_share, setting
        self._lock = threading.Lock()
        self._reasons: dict[str, dict[str, str]] = {name: {} for name in sizes}

    def __len__(self) -> int:
        return sum(self.counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """Number of refused samples of every source."""
        with self._lock:
            return {name: len(reasons) for name, reasons in self._reasons.items()}

    @property
    def entries(self) -> tuple[QuarantineEntry, ...]:
        """All refused samples by source, in the order in which they were added."""
        with self._lock:
            return tuple(
                QuarantineEntry(name, key, reason)
                for name, reasons in self._reasons.items()
                for key, reason in reasons.items()
            )

    def add(self, source: str, key: str, reason: str) -> None:
        """Adds a refused sample and logs it; a sample that is listed already keeps its first reason.

        Raises:
            DataError: More of the source is refused than allowed, or the source is unknown.
        """
        if source not in self._sizes:
            raise DataError(f"there is no source {source!r}; there are {', '.join(self._sizes)}")
        with self._lock:
            reasons = self._reasons[source]
            if key not in reasons:
                reasons[key] = reason
                _LOG.warning("%s: %s skipped: %s", source, _printable(key), _printable(reason))
            self._check(source)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes one JSON line for each refused sample: its source, key and reason."""
        lines = [json.dumps(entry._asdict()) + "\n" for entry in self.entries]
        pathlib.Path(path).write_text("".join(lines), encoding="utf-8")

    def require_one_left(self, source: str, message: str) -> None:
        """Raises DataError with this message and the names of some samples if all samples of a source are refused."""
        with self._lock:
            reasons, size = self._reasons[source], self._sizes[source]
            if len(reasons) >= size:
                raise DataError(f"{source}: {message}: {_some_of(reasons)}")

    def _check(self, source: str) -> None:
        reasons, size = self._reasons[source], self._sizes[source]
        if self._max_share is not None and len(reasons) > self._max_share * size:
            raise DataError(
                f"{source}: {len(reasons)} of {size} samples cannot be used: {len(reasons) / max(size, 1):.2%}, more "
                f"than {self._setting} = {self._max_share:.2%}; repair them or raise {self._setting}: "
                f"{_some_of(reasons)}"
            )

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            reasons = {name: dict(reasons_by_key) for name, reasons_by_key in self._reasons.items()}
        return {"sizes": self._sizes, "max_share": self._max_share, "setting": self._setting, "reasons": reasons}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._sizes, self._max_share, self._setting = state["sizes"], state["max_share"], state["setting"]
        self._reasons = state["reasons"]
        self._lock = threading.Lock()


def _some_of(reasons: Mapping[str, str]) -> str:
    """The first samples with their reasons, and the number of the others."""
    named = [f"{_printable(key)} ({_printable(reason)})" for key, reason in list(reasons.items())[:_MAX_NAMED]]
    rest = f" and {len(reasons) - _MAX_NAMED} more" if len(reasons) > _MAX_NAMED else ""
    return ", ".join(named) + rest


def _printable(text: str) -> str:
    """The text with lone surrogates, which JSON can contain and UTF-8 cannot, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
