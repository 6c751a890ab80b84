"""Which of a host's slots take part in a run: slots that fail again and again are left out at a restart.

`supervisor.py` chooses the slots of the next start by it.
"""

import dataclasses

from configs.common.errors import DEVICE_FAILED
from mmjax.launching.process_end import ProcessEnd

MOST_FAILURES = 2
"""Number of failures in a row of one slot after which it is left out."""


@dataclasses.dataclass(frozen=True)
class Slots:
    """The slots of the next start; a slot has a process and devices of its own. Rank r runs in the r-th of them.

    Attributes:
        used: Numbers of the slots, in ascending order.
        minimum: Smallest number of slots with which the run goes on.
        failed: Slot that failed at last; None if none has.
        failures: Number of failures in a row of that slot.
    """

    used: tuple[int, ...]
    minimum: int
    failed: int | None = None
    failures: int = 0

    def after(self, cause: ProcessEnd) -> "Slots | None":
        """Returns the slots of the start that follows a failure; None if there are too few.

        A slot whose devices failed their check is left out at once, another one after `MOST_FAILURES` in a row, as long
        as the minimum allows it.

        Args:
            cause: End of the process that failed.
        """
        slot = self.used[cause.rank]
        failures = self.failures + 1 if slot == self.failed else 1
        others = tuple(other for other in self.used if other != slot)
        device_failed = cause.exit_code == DEVICE_FAILED
        if len(others) >= self.minimum and (device_failed or failures >= MOST_FAILURES):
            return Slots(others, self.minimum)
        return None if device_failed else dataclasses.replace(self, failed=slot, failures=failures)
