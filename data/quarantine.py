"""Quarantine: the samples that are refused, each counted and listed once, in memory and in a file.

`data.packing.rows.refusals` fills it in runs, and `write_array_record` when it converts a source.
"""

import json
import logging
import os
import pathlib
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from configs.common.shown_text import shortened
from configs.common.whole_files import append_whole
from data.errors import DataError

_LOG = logging.getLogger(__name__)
_MAX_NAMED = 5  # samples that an error names
_MAX_SHOWN = 120  # characters of their keys and reasons
_MAX_LOGGED = 5  # samples of a source of which each is logged


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
            sizes: Number of samples of every source, by name. A source may be one kind of samples of a data set.
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
        self._path: pathlib.Path | None = None
        self._listed: set[tuple[str, str]] = set()  # entries of the file, or to be written as soon as possible
        self._unlisted: list[QuarantineEntry] = []  # entries that could not be written yet

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

    def list_in(self, path: str | os.PathLike[str]) -> None:
        """Appends every refused sample to a file as it is added: a JSON line of its source, key and reason.

        Entries that an earlier run wrote to the file stay and are not repeated.

        Raises:
            DataError: The file cannot be read. One that cannot be written is a warning.
        """
        with self._lock:
            self._path = pathlib.Path(path)
            try:
                self._listed = _listed_in(self._path)
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"{path} cannot be read ({error}); remove it") from error
            for source, reasons in self._reasons.items():
                for key, reason in reasons.items():
                    self._append(QuarantineEntry(source, key, reason))

    def add(self, source: str, key: str, reason: str) -> None:
        """Adds a refused sample, its key and reason shortened; one that is listed already keeps its first reason.

        The first few of a source are logged, then their number whenever it has doubled.

        Raises:
            DataError: The source is unknown.
        """
        if source not in self._sizes:
            raise DataError(f"there is no source {source!r}; there are {', '.join(self._sizes)}")
        key, reason = shortened(key), shortened(reason)
        with self._lock:
            reasons = self._reasons[source]
            if key in reasons:
                return
            reasons[key] = reason
            self._append(QuarantineEntry(source, key, reason))
            count = len(reasons)
            if count <= _MAX_LOGGED:
                _LOG.warning("%s: %s skipped: %s", source, _printable(key), _printable(reason))
            elif count % _MAX_LOGGED == 0 and (count // _MAX_LOGGED).bit_count() == 1:
                _LOG.warning(
                    "%s: %d samples skipped so far, the last: %s: %s%s",
                    *(source, count, _printable(key), _printable(reason), self._where_listed("; all are listed in")),
                )

    def excess(self) -> str:
        """The message of an error if more of a source is refused than allowed; empty otherwise."""
        with self._lock:
            for source, reasons in self._reasons.items():
                size = self._sizes[source]
                if self._max_share is not None and len(reasons) > self._max_share * size:
                    return (
                        f"{source}: {len(reasons)} of {size} samples cannot be used: {len(reasons) / max(size, 1):.2%}"
                        f", more than {self._setting} = {self._max_share:.2%}; repair them or raise {self._setting}"
                        f"{self._where_listed('; they are listed in')}: {_some_of(reasons)}"
                    )
        return ""

    def _append(self, entry: QuarantineEntry) -> None:
        """Lists an entry, after the entries that could not be listed before; warns when listing begins to fail."""
        if self._path is None or (entry.source, entry.key) in self._listed:
            return
        self._listed.add((entry.source, entry.key))
        self._unlisted.append(entry)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            append_whole(self._path, "".join(json.dumps(waiting._asdict()) + "\n" for waiting in self._unlisted))
        except OSError as error:  # a full disk must not end a run
            if len(self._unlisted) == 1:
                _LOG.warning(
                    "%s, the list of refused samples, cannot be written (%s); training goes on, and what it lacks is "
                    "tried again with the next refused sample",
                    *(self._path, error.strerror or error),
                )
            return
        if len(self._unlisted) > 1:
            _LOG.warning("%s: can be written again, and has all refused samples", self._path)
        self._unlisted.clear()

    def _where_listed(self, words: str) -> str:
        return f"{words} {self._path}" if self._path else ""

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            reasons = {name: dict(reasons_by_key) for name, reasons_by_key in self._reasons.items()}
            copied = {"_listed": set(self._listed), "_unlisted": list(self._unlisted)}
        return self.__dict__ | copied | {"_reasons": reasons, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _listed_in(path: pathlib.Path) -> set[tuple[str, str]]:
    """(source, key) of the entries of a list; ends its last line if the process that wrote it was killed within it."""
    if not path.exists():
        return set()
    text = path.read_text(encoding="utf-8")
    if text and not text.endswith("\n"):
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
    listed = set()
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            listed.add((entry["source"], entry["key"]))
        except (ValueError, TypeError, KeyError, RecursionError):  # such a last line: its sample is listed again
            continue
    return listed


def _some_of(reasons: Mapping[str, str]) -> str:
    """The first samples with their reasons, and the number of the others."""
    named = [
        _printable(f"{shortened(key, _MAX_SHOWN)} ({shortened(reason, _MAX_SHOWN)})")
        for key, reason in list(reasons.items())[:_MAX_NAMED]
    ]
    rest = f" and {len(reasons) - _MAX_NAMED} more" if len(reasons) > _MAX_NAMED else ""
    return ", ".join(named) + rest


def _printable(text: str) -> str:
    """The text with lone surrogates, which JSON can contain and UTF-8 cannot, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
