"""Comparison of the steps of all processes of a run: losses, the norm of the gradients, counts of tokens.

`TrainingRun.finish_step` gives the heartbeat a text of each step, whose digests are compared.
"""

import collections
import hashlib
from collections.abc import Mapping

from mmjax.training.heartbeat.liveness import MOST_NAMED, Verdict, describe_process
from mmjax.training.heartbeat.process_status import ProcessStatus


class StepDigests:
    """Digests of all steps up to some recent ones, so few that they fit into a heartbeat.

    Processes beat at different moments, so their newest steps differ. For each power of two the two newest steps that
    it divides are kept. So two processes that are n steps apart both keep some step, if they have done 2 n of them: the
    newest that the first of them has done and that the lowest power of two above n divides.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=6)
        self._newest: dict[int, tuple[tuple[int, str], ...]] = {}  # by power of two

    def add(self, step: int, known: str) -> None:
        """Takes the text about the next finished step."""
        self._hash.update(f"{step}: {known}\n".encode())
        entry = (step, self._hash.hexdigest())
        for power in range((step & -step).bit_length()):
            self._newest[power] = (*self._newest.get(power, ()), entry)[-2:]

    def by_step(self) -> dict[str, str]:
        """The digests that are kept."""
        return {str(step): digest for entries in self._newest.copy().values() for step, digest in entries}


def divergent_processes(said: Mapping[int, str]) -> tuple[list[int], int]:
    """Returns the processes whose text differs from the majority's, and the size of the majority; all and 0 at a tie.

    Args:
        said: The text of each process, by rank.
    """
    (majority, most), *others = collections.Counter(said.values()).most_common()
    if others and others[0][1] == most:
        return sorted(said), 0
    return sorted(rank for rank, text in said.items() if text != majority), most


def find_divergence(statuses: Mapping[int, ProcessStatus]) -> Verdict | None:
    """Names the processes that disagree with most others on a step; None if all agree as far as they can be compared.

    Args:
        statuses: The newest status of each process by rank.
    """
    by_step: dict[str, dict[int, str]] = {}
    for rank, status in statuses.items():
        for step, digest in status.digests.items():
            by_step.setdefault(step, {})[rank] = digest
    for step in sorted(by_step, key=lambda text: (len(text), text)):
        divergent, most = divergent_processes(by_step[step])
        if not divergent:
            continue
        said = ("does" if len(divergent) == 1 else "do") + " not agree" + (f" with the {most} others" if most else "")
        named = ", ".join(describe_process(rank, statuses[rank]) for rank in divergent[:MOST_NAMED])
        more = f", and {len(divergent) - MOST_NAMED} more" if len(divergent) > MOST_NAMED else ""
        return Verdict(
            tuple(divergent),
            f"{named}{more} {said} on the losses, the gradient norm or the data of the steps up to {step}",
        )
    return None
