"""How many microbatches each virtual stage of one chain holds at most, from the schedule's limits alone."""

import numpy as np
from jaxtyping import Int

from sharding.schedules.interleaved_1f1b import in_flight_of_chunk


def microbatches_held(pp: int, chunks: int, microbatches: int, extra: int = 0) -> Int[np.ndarray, " s"]:
    """The most microbatches in flight in each of pp * chunks virtual stages that run a backward.

    Without chunks, rank r of 1F1B holds pp - r. With chunks, a rank holds 2 (pp - r - 1) + (chunks - 1) pp + 1 in all
    of them together (`interleaved_in_flight`); this is the most in each, which chunks reach at different times, so that
    their sum is an upper bound. Where pp does not divide the microbatches, a chunk may hold as many as its rank.

    Args:
        pp: Pipeline ranks.
        chunks: Virtual stages on each.
        microbatches: Microbatches of a step.
        extra: Microbatches that each rank may hold beyond the schedule's limits (`ScheduleHints.extra_microbatches`).
    """
    if chunks == 1:
        return np.minimum(microbatches, pp - np.arange(pp) + extra)
    held = []
    for stage in range(pp * chunks):
        chunk, rank = divmod(stage, pp)
        limit = pp * chunks + pp - 2 * rank - 1 + extra
        held.append(limit if microbatches % pp else in_flight_of_chunk(limit, pp, chunks, chunk))
    return np.minimum(microbatches, held)
