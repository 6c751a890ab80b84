"""`tiny_features.gin`: three axes of positions, features of encoder layers and blocks, where both modules are cut."""

import mmjax
from mmjax.training.verification.configured_run import verify_run
from mmjax.training.verification.divided_plans import GlobalRows
from mmjax.training.verification.layouts import default_layouts
from sharding.specs.modules import module_graph

CONFIG = mmjax.load("tiny_features.gin")


def test_pipelines_tensor_ranks_and_rows_of_their_own_agree_with_one_device():
    model, data = CONFIG.model, CONFIG.data
    layouts, _ = default_layouts(module_graph(model), GlobalRows.from_data(model, data), devices=4)
    chosen = [layout for layout in layouts if layout.name.startswith(("tp 2 -> 2 -> 1, pp 2 -> 2 -> 1", "rows 1 -> 0"))]
    assert [[(unit.pp, unit.tp) for unit in layout.plan.units[:2]] for layout in chosen] == [
        [(1, 1), (1, 1)],
        [(2, 2), (2, 2)],
    ]
    for report in verify_run(model, data, CONFIG.dataset("train"), chosen, CONFIG.engine_settings, steps=1):
        assert report.ok, report
