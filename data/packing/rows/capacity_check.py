"""The capacity check: whether samples of a kind fit into a row at all, known before the first step.

`training_pipeline` runs it.
"""

import itertools
from collections.abc import Iterable

from data.data_config import RowCapacity, capacity_setting
from data.datasets.dataset import SampleIndex
from data.errors import DataError
from data.packing.rows.refusals import Refusal, call_or_refuse
from data.samples.sample import SampleSizes

MAX_CHECKED = 128
"""Number of samples of a kind of which at least one has to fit."""


def require_fitting_sample(
    kind: str, sample_ids: Iterable[int], sample_index: SampleIndex, capacity: RowCapacity
) -> None:
    """Raises DataError if none of the first `MAX_CHECKED` samples of a kind fits into a row.

    Reads headers up to the first sample that fits, usually one. Unreadable samples do not count: the quarantine
    reports them.

    Args:
        kind: The kind of the samples, for the message.
        sample_ids: Samples of the kind, in random order.
        sample_index: Reads the sizes of samples.
        capacity: Capacity of a row.
    """
    oversized = []
    for sample_id in itertools.islice(sample_ids, MAX_CHECKED):
        sizes = call_or_refuse(sample_index.sizes, sample_index, sample_id)
        if isinstance(sizes, Refusal):
            continue
        if capacity.excess_reason(sizes.row_units) is None:
            return
        oversized.append(sizes)
    if oversized:
        raise DataError(
            f"{kind}: none of {len(oversized)} samples fits into a row: they need {_needs(oversized, capacity)}; raise "
            "it (python -m mmjax.describe_data suggests capacities) or leave the kind out of DataConfig.mixture"
        )


def _needs(oversized: list[SampleSizes], capacity: RowCapacity) -> str:
    """The range of every size that exceeds its capacity, such as `31 to 40 tokens (DataConfig.tokens = 8)`."""
    needs = []
    for name, limit in capacity.units.items():
        values = [sizes.row_units.get(name, 0) for sizes in oversized]
        low, high = min(values), max(values)
        if high > limit:
            needs.append(f"{low} to {high} {name} ({capacity_setting(name)} = {limit})")
    return " and ".join(needs)
