"""Rules for the checkpoints that are kept, and for the folders in which their copies may be.

Settings of `TrainConfig`; the manager applies them after every save, the remote tier to its copies.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from configs.common.errors import UserError

OBJECT_STORES = ("gs", "s3")
"""Object stores, by the start of a folder's name; they need the packages of the extra `remote`."""


def check_remote_folder(folder: str) -> None:
    """Raises UserError if a folder's name starts with the scheme of an object store that is not known."""
    scheme, separator, _ = folder.partition("://")
    if separator and scheme not in OBJECT_STORES:
        known = ", ".join(f"{name}://" for name in OBJECT_STORES)
        raise UserError(f"TrainConfig.remote_checkpoints is {folder!r}: give a plain folder, or one of {known}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention:
    """Which checkpoints are kept: every checkpoint that one of the rules keeps.

    Attributes:
        newest: Number of the newest checkpoints that are kept.
        every: Checkpoints of multiples of this number of steps are kept; 0 for none.
        best: Number of the checkpoints with the highest score that are kept; 0 for none.
    """

    newest: int = 2
    every: int = 0
    best: int = 0

    def __post_init__(self) -> None:
        if self.newest < 1:
            raise UserError(f"a run that keeps {self.newest} checkpoints could not be resumed; keep at least 1")

    def steps_to_remove(self, steps: Iterable[int], scores: Mapping[int, float]) -> list[int]:
        """Returns the steps whose checkpoints are removed.

        Args:
            steps: Steps with a checkpoint.
            scores: Scores by evaluated step. Of equal scores the later step is better.
        """
        steps = sorted(steps)
        scored = sorted((step for step in steps if step in scores), key=lambda step: (scores[step], step))
        kept = {*steps[-self.newest :], *(scored[-self.best :] if self.best else ())}
        return [step for step in steps if step not in kept and (not self.every or step % self.every)]


DEFAULT_RETENTION = Retention()
"""Keeps the two newest checkpoints."""
