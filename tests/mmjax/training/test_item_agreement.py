"""Processes that would run different microbatches of a step say so before it begins."""

from tests.sharding.runtime.processes import run_cluster


def test_a_process_that_dealt_other_items_is_named_by_all():
    said = run_cluster("tests.mmjax.training.deal_as_one_of_several", (1, 1, 1))
    for each in said:
        (error,) = (line for line in each.splitlines() if line.startswith("seed"))
        assert error == (
            "seed 2: process 2 has dealt the items of the next batch otherwise than 2 of 3 processes: it has other "
            "sizes of samples; give all processes the same data set and configuration"
        )
