"""Where stages with tensor ranks cut local and global attention (`tiny_local.gin`), or a generator (`tiny_dit.gin`)."""

import pytest

import mmjax
from mmjax.training.verification.configured_run import verify_run
from mmjax.training.verification.layouts.default_layouts import default_layouts
from mmjax.training.verification.layouts.divided_plans import GlobalRows
from sharding.specs.modules import module_graph

pytestmark = pytest.mark.layouts


@pytest.mark.parametrize(
    ("file", "name", "divisions"),
    [
        ("tiny_local.gin", "tp 2 -> 2 -> 1, pp 2 -> 2 -> 1", [(2, 2), (2, 2), (1, 1)]),
        ("tiny_dit.gin", "tp 1 -> 1 -> 2, pp 1 -> 1 -> 2", [(1, 1), (1, 1), (2, 2)]),
    ],
)
def test_stages_with_tensor_ranks_agree_with_one_device(file, name, divisions):
    config = mmjax.load(file)
    model, data = config.model, config.data
    layouts, _ = default_layouts(module_graph(model), GlobalRows.from_data(model, data), devices=4)
    (layout,) = [layout for layout in layouts if layout.name.startswith(name)][:1]
    assert [(unit.pp, unit.parallelism.tp) for unit in layout.plan.units] == divisions
    for report in verify_run(model, data, config.dataset("train"), [layout], config.engine_settings, steps=1):
        assert report.ok, report
