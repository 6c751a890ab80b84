import hypothesis
from hypothesis import strategies

from mmjax.training.heartbeat.process_status import LONGEST_STATUS, ProcessStatus
from mmjax.training.heartbeat.step_digests import StepDigests, find_divergence


def digests(steps: int, *, wrong: int = 0, first: int = 1) -> dict[str, str]:
    """Of a process after so many steps, of which one is wrong."""
    made = StepDigests()
    for step in range(first, steps + 1):
        made.add(step, "other" if step == wrong else f"loss {1 / step}")
    return made.by_step()


def status(kept: dict[str, str]) -> ProcessStatus:
    return ProcessStatus(host="node1", phase="training", step=9, beat=1, digests=kept)


@hypothesis.given(strategies.integers(1, 300), strategies.integers(0, 100), strategies.integers(1, 500))
def test_processes_some_steps_apart_are_compared(behind, ahead, first):
    done = first + behind
    kept = digests(done, first=first), digests(done + ahead, first=first)
    if behind >= 2 * ahead:
        assert kept[0].keys() & kept[1].keys()
    assert find_divergence({0: status(kept[0]), 1: status(kept[1])}) is None


@hypothesis.given(strategies.integers(1, 100), strategies.integers(0, 20), strategies.integers(0, 100))
def test_a_wrong_step_is_seen_in_all_later_ones(wrong, ahead, after):
    done = wrong + 2 * ahead + after
    kept = digests(done), digests(done + ahead, wrong=wrong)
    common = sorted(int(step) for step in kept[0].keys() & kept[1].keys() if int(step) >= wrong)
    verdict = find_divergence({0: status(kept[0]), 1: status(kept[1])})
    assert (verdict is not None) == bool(common)
    if verdict:
        assert verdict.ranks == (0, 1) and verdict.reason.endswith(f"of the steps up to {common[0]}")


def test_the_process_that_differs_from_most_is_named():
    right, wrong = digests(40), digests(40, wrong=33)
    verdict = find_divergence({0: status(right), 1: status(wrong), 2: status(right)})
    assert verdict is not None and verdict.ranks == (1,)
    assert verdict.reason == (
        "process 1 (on node1, training after step 9) does not agree with the 2 others on the losses, the gradient norm "
        "or the data of the steps up to 36"
    )


def test_digests_of_millions_of_steps_fit_into_a_status():
    made = StepDigests()
    for power in range(40):
        for step in (1 << power, 3 << power):
            made.add(step, "")
    assert len(status(made.by_step()).to_json()) < LONGEST_STATUS / 2
