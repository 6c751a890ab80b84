"""Processes that would run different microbatches of a step, or none, say so before it begins, all of them."""

import pytest

from mmjax.training.heartbeat.item_agreement import describe_disagreement
from tests.sharding.runtime.processes import run_cluster


@pytest.mark.processes
def test_a_process_that_dealt_other_items_is_named_by_all():
    said = run_cluster("tests.mmjax.training.deal_as_one_of_several", (1, 1, 1))
    for output in said:
        (error,) = (line for line in output.splitlines() if line.startswith("seed"))
        assert error == (
            "seed 2: process 2 has dealt the items of the next batch otherwise than 2 of 3 processes: their sizes "
            "of samples differ; give all processes the same data set and configuration"
        )
        all_refuse, one_refuses = (line for line in output.splitlines() if " refuse: " in line)
        assert all_refuse == "3 refuse: does not fit"
        assert one_refuses.startswith("1 refuse: process 1 has dealt the items of the next batch otherwise than 2 of 3")


def test_all_are_named_where_no_way_to_deal_is_the_commonest():
    assert describe_disagreement({0: "a", 1: "a"}) == ""
    assert describe_disagreement({1: "b", 0: "a"}).startswith(
        "processes 0, 1 have not dealt the items of the next batch alike: their sizes"
    )
    assert describe_disagreement(dict(enumerate("abbbaab" + "c" * 9))).startswith(
        "processes 0, 1, 2, 3, 4, 5, 6 have dealt the items of the next batch otherwise than 9 of 16 processes: "
    )
    assert describe_disagreement(dict(enumerate("ab" * 5))).startswith(
        "processes 0, 1, 2, 3, 4, 5, 6, 7, and 2 more have not dealt"
    )
