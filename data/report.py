"""What a pipeline refused: nothing vanishes unseen."""

import logging
import threading
from collections.abc import Mapping

from data.errors import BadSampleError, DataError

_LOG = logging.getLogger(__name__)
_NAMED = 10  # ids an error spells out


class Refusals:
    """Counts the images that cannot be read and the samples that fit no row, logging each once; threads may share it.

    A share counts distinct items of the whole source, so that when it is passed depends on the data alone, not on
    how much of it was read.
    """

    def __init__(self, image_count: int, max_corrupt_share: float, kind_sizes: Mapping[str, int]) -> None:
        """Starts with nothing refused.

        Args:
            image_count: Images of the source.
            max_corrupt_share: Corrupt images are skipped up to this share of `image_count`.
            kind_sizes: Samples of every kind of the source.
        """
        self._image_count = image_count
        self._max_corrupt_share = max_corrupt_share
        self._kind_sizes = kind_sizes
        self._lock = threading.Lock()
        self._corrupt: dict[str, int] = {}
        self._oversized: dict[str, set[int]] = {kind: set() for kind in kind_sizes}

    @property
    def corrupt_images(self) -> int:
        """Distinct images that could not be read."""
        return len(self._corrupt)

    @property
    def oversized_samples(self) -> int:
        """Distinct samples that fit no row."""
        return sum(map(len, self._oversized.values()))

    def corrupt(self, sample_id: int, error: BadSampleError) -> None:
        """Counts an unreadable image by its path.

        Raises:
            DataError: More than the share allowed; names the images and their samples.
        """
        with self._lock:
            if error.where not in self._corrupt:
                self._corrupt[error.where] = sample_id
                _LOG.warning("sample %d skipped: %s", sample_id, error)
            share = len(self._corrupt) / self._image_count
            if share > self._max_corrupt_share:
                named = [f"{path} (sample {number})" for path, number in list(self._corrupt.items())[:_NAMED]]
                raise DataError(
                    f"{len(self._corrupt)} of {self._image_count} images cannot be read: {share:.2%}, more than "
                    f"max_corrupt_share = {self._max_corrupt_share:.2%}; mend the files or raise it: {', '.join(named)}"
                ) from error

    def oversized(self, sample_id: int, kind: str, reason: str) -> None:
        """Counts a sample that fits no row.

        Raises:
            DataError: Every sample of the kind is refused, so that none would ever come.
        """
        with self._lock:
            if sample_id in self._oversized[kind]:
                return
            self._oversized[kind].add(sample_id)
            _LOG.warning("sample %d (%s) skipped: %s", sample_id, kind, reason)
            if len(self._oversized[kind]) == self._kind_sizes[kind]:
                raise DataError(f"not one of {self._kind_sizes[kind]} {kind} samples fits a row; the last: {reason}")
