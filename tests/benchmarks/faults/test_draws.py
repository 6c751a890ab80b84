"""Which faults hit which run: decided by the seed alone, every kind in its share, none where it cannot be."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.faults.draws import draw_runs, kind_counts
from benchmarks.faults.kinds import KINDS, LOST_HOST, PRODUCER, SAMPLE


@given(st.integers(1, 250), st.integers(0, 10))
def test_every_fault_is_dealt_once_to_a_run_that_can_have_it(count, seed):
    runs = draw_runs(count, seed)
    dealt = collections.Counter(fault.kind for run in runs for fault in run.faults)
    assert dealt == collections.Counter(kind_counts(count)) and dealt.total() == count
    assert runs == draw_runs(count, seed)
    for run in runs:
        kinds = [fault.kind for fault in run.faults]
        assert kinds
        assert kinds.count(LOST_HOST) <= run.processes - 2
        assert PRODUCER not in kinds or run.with_producers
        assert SAMPLE not in kinds or not run.with_producers
        assert all(fault.moment.phase in fault.kind.phases for fault in run.faults)


def test_kinds_have_their_share_and_the_few_faults_of_ci_have_every_kind():
    assert sum(kind.weight for kind in KINDS) == 100
    assert kind_counts(200) == {kind: 2 * kind.weight for kind in KINDS}
    assert min(kind_counts(20).values()) > 0
    assert {run.processes for run in draw_runs(200, 0)} == {2, 3, 4}


@pytest.mark.parametrize("seed", [0, 1])
def test_another_seed_draws_other_moments(seed):
    moments = [fault.moment for run in draw_runs(20, seed) for fault in run.faults]
    others = [fault.moment for run in draw_runs(20, seed + 1) for fault in run.faults]
    assert moments != others
