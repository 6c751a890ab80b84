"""What cannot be used, sample by sample: nothing vanishes unseen."""

import json
import logging
import os
import pathlib
import threading
from collections.abc import Iterable, Mapping

from data.errors import DataError

_LOG = logging.getLogger(__name__)
_NAMED = 10  # samples an error spells out

# Source, key within the source, reason.
Entry = tuple[str, str, str]


class Quarantine:
    """The samples that cannot be used, each listed and logged once; threads may share it.

    A share counts the distinct bad samples of a source against the whole source, so that when it is passed depends on
    the data alone, not on how much of it was read. A copy that a worker process gets goes its own way: send its
    `entries` back and `merge` them.
    """

    def __init__(self, sizes: Mapping[str, int], max_share: float) -> None:
        """Starts empty.

        Args:
            sizes: Samples of every source, by its name.
            max_share: Up to this share of a source may be bad.

        Raises:
            DataError: A share outside [0, 1).
        """
        if not 0 <= max_share < 1:
            raise DataError(f"Quarantine.max_share is {max_share}; it must lie in [0, 1)")
        self._sizes = dict(sizes)
        self._max_share = max_share
        self._lock = threading.Lock()
        self._reasons: dict[str, dict[str, str]] = {name: {} for name in sizes}

    def __len__(self) -> int:
        return sum(self.counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """Bad samples of every source."""
        with self._lock:
            return {name: len(reasons) for name, reasons in self._reasons.items()}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All bad samples, source after source, in the order in which they were found."""
        with self._lock:
            return tuple(
                (name, key, reason) for name, reasons in self._reasons.items() for key, reason in reasons.items()
            )

    def add(self, source: str, key: str, reason: str) -> None:
        """Lists a bad sample; one that is listed already keeps its first reason.

        Raises:
            DataError: More of the source is bad than allowed, or there is no such source.
        """
        if source not in self._sizes:
            raise DataError(f"there is no source {source!r}; there are {', '.join(self._sizes)}")
        with self._lock:
            reasons = self._reasons[source]
            if key not in reasons:
                reasons[key] = reason
                _LOG.warning("%s: %s skipped: %s", source, _shown(key), _shown(reason))
            self._check(source)

    def merge(self, entries: Iterable[Entry]) -> None:
        """Lists what another process found; may be given the same entries again. Raises DataError as `add` does."""
        for entry in entries:
            self.add(*entry)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON line a bad sample: its source, key and reason."""
        lines = [
            json.dumps({"source": source, "key": key, "reason": reason}) + "\n" for source, key, reason in self.entries
        ]
        pathlib.Path(path).write_text("".join(lines), encoding="utf-8")

    def _check(self, source: str) -> None:
        reasons, size = self._reasons[source], self._sizes[source]
        if len(reasons) > self._max_share * size:
            named = [f"{_shown(key)} ({_shown(reason)})" for key, reason in list(reasons.items())[:_NAMED]]
            more = f" and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
            raise DataError(
                f"{source}: {len(reasons)} of {size} samples cannot be used: {len(reasons) / max(size, 1):.2%}, more "
                f"than max_share = {self._max_share:.2%}; mend them or raise it: {', '.join(named)}{more}"
            )

    def __getstate__(self) -> dict[str, object]:
        with self._lock:
            reasons = {name: dict(found) for name, found in self._reasons.items()}
        return {"sizes": self._sizes, "max_share": self._max_share, "reasons": reasons}

    def __setstate__(self, state: dict[str, object]) -> None:
        self._sizes, self._max_share, self._reasons = state["sizes"], state["max_share"], state["reasons"]
        self._lock = threading.Lock()


def _shown(text: str) -> str:
    """The text as any terminal takes it: half of a surrogate pair, which a JSON file can hold, is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
