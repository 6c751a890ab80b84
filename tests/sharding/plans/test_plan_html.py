"""A plan in a notebook: every unit in the table, every device of a stage in the drawing."""

import re

from sharding.plans.plan import Plan
from tests.sharding.html.documents import parsed_fragment, tables, tick_positions, words
from tests.unit_plans import module_unit

UNITS = (
    module_unit("vision", (0, 1, 6), layers=(12,), dp=3),
    module_unit("backbone", (2, 3, 4, 5), layers=(3, 2, 3, 1), dp=2, chunks=2),
)


def test_a_plan_shows_its_units_and_their_devices():
    plan = Plan(UNITS, microbatches=4, schedule="interleaved")
    root = parsed_fragment(plan._repr_html_())
    assert words(root).startswith("7 devices, 4 microbatches, schedule interleaved.")
    (table,) = tables(root)
    assert table[0] == list(plan.table()[0]) and table[1:] == [list(row.values()) for row in plan.table()]
    hints = [words(node.find("title")) for node in root.iter("rect") if node.find("title") is not None]
    assert hints == [
        "vision, stage 0, 12 layers: devices 0 to 1",
        "vision, stage 0, 12 layers: devices 6 to 6",
        "backbone, stage 0, 3+3 layers: devices 2 to 3",
        "backbone, stage 1, 2+1 layers: devices 4 to 5",
    ]
    ticks = tick_positions(root)
    assert [label for _, label in ticks] == list(range(8))
    lefts = [float(node.get("x") or 0) for node in root.iter("rect")]
    assert lefts == [{label: x for x, label in ticks}[first] for first in (0, 6, 2, 4)]


def test_thousands_of_devices_are_a_few_rectangles():
    unit = module_unit("backbone", range(1152), layers=(80,), dp=288, tp=4)
    html = Plan((unit,))._repr_html_()
    assert len(re.findall("<rect", html)) == 1 and "80 layers: devices 0 to 1151" in html
