"""`tiny_features.gin`: three axes of positions, features of encoder layers and blocks, where both modules are cut."""

import pytest

import mmjax
from mmjax.training.verification.configured_run import verify_run
from mmjax.training.verification.layouts.default_layouts import default_layouts
from mmjax.training.verification.layouts.divided_plans import GlobalRows
from mmjax.training.verification.layouts.layout_kinds import NamedLayout
from sharding.plans.plan import Plan
from sharding.specs.modules import module_graph
from tests.unit_plans import changed_unit

pytestmark = pytest.mark.layouts

CONFIG = mmjax.load("tiny_features.gin")


def test_pipelines_of_tensor_ranks_and_rows_of_their_own_agree_with_one_device():
    """One layout has what two of the default list have: tensor ranks in two stages, and rows of two capacities."""
    model, data = CONFIG.model, CONFIG.data
    layouts, _ = default_layouts(module_graph(model), GlobalRows.from_data(model, data), devices=4)
    cut, own_rows = (
        next(layout for layout in layouts if layout.name.startswith(name))
        for name in ("tp 2 -> 2 -> 1, pp 2 -> 2 -> 1", "rows 1 -> 0")
    )
    of_rows = {
        unit.name: {"phase_rows": unit.phase_rows, "capacities": unit.capacities} for unit in own_rows.plan.units
    }
    units = tuple(changed_unit(unit, **of_rows[unit.name]) for unit in cut.plan.units)
    assert [(unit.pp, unit.parallelism.tp, unit.phase_rows, len(unit.capacities)) for unit in units] == [
        (2, 2, 1, 2),
        (2, 2, 0, 0),
        (1, 1, 1, 2),
    ]
    both = NamedLayout("both", Plan(units, own_rows.plan.microbatches, cut.plan.schedule), own_rows.transport)
    (report,) = verify_run(model, data, CONFIG.dataset("train"), [both], CONFIG.engine_settings, steps=1)
    assert report.ok, report
