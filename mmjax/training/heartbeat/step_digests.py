"""Whether the processes of a run agree on its steps: losses, the norm of the gradients, counts of tokens."""

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
        """Takes what a process knows of its next finished step."""
        self._hash.update(f"{step}: {known}\n".encode())
        entry = (step, self._hash.hexdigest())
        for power in range((step & -step).bit_length()):
            self._newest[power] = (*self._newest.get(power, ()), entry)[-2:]

    def by_step(self) -> dict[str, str]:
        """The digests that are kept."""
        return {str(step): digest for entries in self._newest.copy().values() for step, digest in entries}


def find_divergence(statuses: Mapping[int, ProcessStatus]) -> Verdict | None:
    """Names the processes that disagree with most others on a step; None if all agree as far as they can be compared.

    Args:
        statuses: The newest status of each process by rank.
    """
    by_step: dict[str, dict[str, list[int]]] = {}
    for rank, status in sorted(statuses.items()):
        for step, digest in status.digests.items():
            by_step.setdefault(step, {}).setdefault(digest, []).append(rank)
    for step in sorted(by_step, key=lambda text: (len(text), text)):
        groups = by_step[step]
        if len(groups) == 1:
            continue
        sizes = collections.Counter({digest: len(ranks) for digest, ranks in groups.items()})
        (majority, most), (_, second) = sizes.most_common(2)
        if most == second:
            divergent = sorted(rank for ranks in groups.values() for rank in ranks)
            said = "do not agree"
        else:
            divergent = sorted(rank for digest, ranks in groups.items() if digest != majority for rank in ranks)
            said = (
                f"does not agree with the {most} others"
                if len(divergent) == 1
                else f"do not agree with the {most} others"
            )
        named = ", ".join(describe_process(rank, statuses[rank]) for rank in divergent[:MOST_NAMED])
        more = f", and {len(divergent) - MOST_NAMED} more" if len(divergent) > MOST_NAMED else ""
        return Verdict(
            tuple(divergent),
            f"{named}{more} {said} on the losses, the gradient norm or the data of the steps up to {step}",
        )
    return None
