"""First-fit: a sample joins the first of several open groups that has room for it in every modality."""

import numpy as np
from jaxtyping import Float, Int

from data.grouping.groups import Groups, joined

_GROUPS_A_BIN = 16  # that close on average in each stream, before its open ones are packed again


def first_fit(
    columns: Float[np.ndarray, "k n"],
    capacity: Float[np.ndarray, " k"],
    order: Int[np.ndarray, " m"],
    bins: int,
) -> Groups:
    """Packs samples in order, `bins` groups open at a time; where none has room, the fullest one closes.

    Many samples are cut into streams with open groups of their own, which take one sample at a time together; what is
    in groups that are still open at the end of a stream is packed again, in fewer streams, until one is left.

    Args:
        columns: Units of every sample, by modality, none negative.
        capacity: Units that a group holds at most; no sample may exceed it.
        order: Samples to pack.
        bins: Groups open at a time.
    """
    share = float((columns.mean(axis=1) / capacity).max()) if columns.size else 0.0
    parts = []
    streams = len(order)
    while len(order):
        streams = min(streams // 2, int(len(order) * share / (_GROUPS_A_BIN * bins))) or 1
        closed, order = _pack(columns, capacity, order, bins, streams)
        parts.append(closed)
    return joined(parts)


def _pack(
    columns: Float[np.ndarray, "k n"],
    capacity: Float[np.ndarray, " k"],
    order: Int[np.ndarray, " m"],
    bins: int,
    streams: int,
) -> tuple[Groups, Int[np.ndarray, " rest"]]:
    """The groups that close, and the samples of the others; a single stream closes all of its groups."""
    rows = len(order) // streams
    taken = order[: rows * streams].reshape(streams, rows).T
    sizes = np.stack([column[taken] for column in columns])
    most = capacity[:, None, None].astype(sizes.dtype)
    held = np.zeros((len(columns), bins, streams), sizes.dtype)
    number = np.repeat(np.arange(bins)[:, None], streams, axis=1)  # of each open group, within its stream
    opened = np.full(streams, bins)
    groups = np.empty((rows, streams), np.int64)
    each = np.arange(streams)
    for row in range(rows):
        more = held + sizes[:, row, None]
        fits = (more <= most).all(axis=0)
        has_room = fits.any(axis=0)
        fullest = (held / most).max(axis=0).argmax(axis=0)
        chosen = np.where(has_room, fits.argmax(axis=0), fullest)
        held[:, chosen, each] = np.where(has_room, more[:, chosen, each], sizes[:, row])
        number[chosen, each] = np.where(has_room, number[chosen, each], opened)
        opened += ~has_room
        groups[row] = number[chosen, each]
    groups = groups + (np.cumsum(opened) - opened)
    still_open = np.zeros(int(opened.sum()), bool)
    if streams > 1:
        still_open[number + (np.cumsum(opened) - opened)] = True
    left = still_open[groups]
    order_of_groups = np.argsort(groups[~left], kind="stable")
    lengths = np.bincount(groups[~left])
    closed = Groups.from_lengths(taken[~left][order_of_groups], lengths[lengths > 0])
    return closed, np.concatenate([taken[left], order[rows * streams :]])
