"""Comparing the reports of the processes, and reports that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.common.errors import UserError
from mmjax.training.start_checks.comparison import (
    StartReport,
    describe_clocks,
    describe_differences,
    describe_failures,
)


def reports(identities, times=None, failures=None) -> dict[int, StartReport]:
    return {
        process: StartReport(
            host=f"node{process // 2}",
            time=float(times[process]) if times else 0.0,
            identity=identity,
            failure=failures[process] if failures else "",
        )
        for process, identity in enumerate(identities)
    }


def test_the_processes_that_differ_from_most_are_named_with_what_differs():
    identities = [{"plan": "a", "version of jax": "1"} for _ in range(6)]
    identities[2] |= {"plan": "b"}
    identities[3] |= {"plan": "b", "version of jax": ""}
    assert describe_differences(reports(identities)) == (
        "plan is b in process 2, 3 (node1), and a elsewhere; version of jax is not set in process 3 (node1), and 1 "
        "elsewhere"
    )


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy")), min_size=1, max_size=5))
def test_processes_are_alike_where_all_that_say_something_say_the_same(identities):
    alike = all(len({one[name] for one in identities if name in one}) <= 1 for name in "abc")
    assert (describe_differences(reports(identities)) == "") == alike


def test_clocks_that_are_apart():
    assert describe_clocks(reports([{}] * 3, times=[100, 101, 99])) == ""
    assert describe_clocks(reports([{}] * 3, times=[100, 160, 99])) == (
        "the clock of process 1 (node0) is 61 s ahead of that of process 2 (node1): "
        "times in logs and file systems do not agree"
    )


def test_failures_are_named_with_their_process_and_host():
    failures = ["", "", "device x multiplies wrongly in float32"]
    assert describe_failures(reports([{}] * 3, failures=failures)) == f"process 2 (node1): {failures[2]}"


def test_a_report_comes_back():
    report = StartReport(host="a", time=1.5, identity={"plan": "b"}, failure="c")
    assert StartReport.from_json(report.to_json(), 3) == report


TEXTS = st.text(max_size=20) | st.sampled_from(
    ["{}", "[1]", '{"host": "a", "time": 1, "identity": {}, "failure": ""}', "[" * 5000, "x" * 200_000, "NaN"]
    + ['{"host": "a", "time": 1.0, "identity": {"x": 1}, "failure": ""}']
)


@given(TEXTS)
def test_any_other_text_is_refused_in_a_line_that_names_the_process(text):
    with pytest.raises(UserError, match="^the start report of process 3") as refused:
        StartReport.from_json(text, 3)
    assert "\n" not in str(refused.value)
