"""Every sample is handed out once an epoch, for every grouping policy and across interruptions."""

import collections
import json

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.errors import BadSampleError
from data.packing.grouping.grouping_policies import GROUPING_POLICIES
from data.packing.rows.endless_order import endless_order
from data.packing.rows.row_planner import PlannerState
from data.samples.sample import SampleSizes
from tests.data.packing.planned_rows import row_planner

CAPACITY = RowCapacity(tokens=100, lengths={"patches": 40, "frames": 30}, images=2, samples=6)


class Sized(SampleIndex):
    """A catalogue of samples of random sizes, of which some cannot be used."""

    def __init__(self, count, seed):
        random = np.random.default_rng(seed)
        self.all = [
            SampleSizes(tokens=int(t), items={"patches": (int(p),), "frames": (int(f),)}, images=int(i), targets=1)
            for t, p, f, i in zip(
                random.integers(1, 120, count),
                random.integers(0, 40, count) * (random.random(count) < 0.5),
                random.integers(0, 30, count) * (random.random(count) < 0.3),
                random.integers(0, 3, count) * (random.random(count) < 0.2),
                strict=True,
            )
        ]
        self.bad = set(np.flatnonzero(random.random(count) < 0.05).tolist())

    def kind_of(self, number):
        return "made"

    def sizes(self, number):
        if number in self.bad:
            raise BadSampleError(f"{number}", "bad")
        return self.all[number]

    def usable(self):
        return {
            n for n, sizes in enumerate(self.all) if n not in self.bad and not CAPACITY.excess_reason(sizes.row_units)
        }


def planner(catalogue, grouping, rows, window, endless):
    count = len(catalogue.all)
    stream = endless_order(range(count), 1) if endless else grain.MapDataset.range(count)
    return row_planner(grouping, catalogue, stream, CAPACITY, rows=rows, window=window, epoch=count, seed=3)


def samples_of(plan):
    return [number for row in plan.rows for number in row]


cases = st.fixed_dictionaries(
    {
        "count": st.integers(1, 120),
        "rows": st.integers(1, 5),
        "window": st.integers(1, 60),
        "seed": st.integers(0, 99),
        "grouping": st.sampled_from(sorted(GROUPING_POLICIES)),
    }
)


@given(cases)
@settings(max_examples=30, deadline=None)
def test_a_pass_hands_out_every_usable_sample_once(case):
    catalogue = Sized(case["count"], case["seed"])
    plans = list(planner(catalogue, case["grouping"], case["rows"], case["window"], False).steps(PlannerState()))
    seen = collections.Counter(number for plan in plans for number in samples_of(plan))
    assert set(seen) == catalogue.usable() and set(seen.values()) <= {1}
    for plan in plans:
        assert len(plan.rows) == case["rows"] or (not plan.rows and plan.refused)
        for row in plan.rows:
            units = (
                np.array([[*catalogue.all[number].row_units.values(), 1] for number in row]).reshape(-1, 5).sum(axis=0)
            )
            assert (units <= [*CAPACITY.vector, CAPACITY.samples]).all()


@given(cases, st.lists(st.integers(0, 12), max_size=6))
@settings(max_examples=20, deadline=None)
def test_interruptions_anywhere_lose_and_repeat_nothing(case, stops):
    catalogue = Sized(case["count"], case["seed"])
    how = (case["grouping"], case["rows"], case["window"], False)
    whole = [plan.rows for plan in planner(catalogue, *how).steps(PlannerState())]
    done, place = [], PlannerState()
    for stop in [*stops, 10**6]:
        # A new process knows nothing but the place, as a checkpoint holds it.
        place = PlannerState.from_json(json.loads(json.dumps(place.to_json())))
        again = planner(Sized(case["count"], case["seed"]), *how)
        for number, plan in enumerate(again.steps(place) if len(done) < len(whole) else ()):
            if number == stop:
                break
            done.append(plan.rows)
            place = plan.state_after
    assert done == whole


@pytest.mark.parametrize("grouping", sorted(GROUPING_POLICIES))
def test_every_epoch_hands_out_each_sample_once_except_carried_ones(grouping):
    catalogue = Sized(200, 7)
    rows, waiting = 4, 0
    seen = collections.Counter()
    for plan in planner(catalogue, grouping, rows, 50, True).steps(PlannerState()):
        if plan.state_after.window_start >= 5 * 200 and plan.state_after.steps_taken == 0:
            waiting = len(plan.state_after.carried_samples)
            seen.update(samples_of(plan))
            break
        seen.update(samples_of(plan))
    assert set(seen) == catalogue.usable() and sum(seen.values()) == 5 * len(catalogue.usable()) - waiting
    assert max(seen.values()) - min(seen.values()) <= 2 and waiting < 2 * rows * CAPACITY.samples
