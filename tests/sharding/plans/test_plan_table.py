"""A plan's table, as it is printed."""

from sharding.plans.plan import Plan
from tests.unit_plans import module_unit


def test_a_printed_table_has_a_line_of_aligned_columns_for_each_unit():
    plan = Plan(
        (
            module_unit("vision", (0, 1), layers=(2,), name="eyes", dp=2),
            module_unit("backbone", (2, 3, 4, 5), layers=(1, 3), name="mind", recompute=("none", "full"), tp=2),
        )
    )
    assert str(plan.table()) == (
        "unit  modules   devices  dp  tp  pp  layers  recompute\n"
        "eyes  vision    0-1      2   1   1   2       none\n"
        "mind  backbone  2-5      1   2   2   1 3     none; full"
    )
