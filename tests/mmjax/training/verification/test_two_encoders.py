"""`tiny_encoders.gin`: two encoders, one of them frozen, beside the backbone in pipeline replicas and bundles."""

import math

import pytest

import mmjax
from mmjax.training.verification.configured_run import verify_run
from mmjax.training.verification.layouts.default_layouts import default_layouts
from mmjax.training.verification.layouts.divided_plans import GlobalRows
from mmjax.training.verification.layouts.layout_table import LAYOUT_KINDS
from sharding.specs.modules import module_graph

pytestmark = pytest.mark.layouts

CONFIG = mmjax.load("tiny_encoders.gin")
GRAPH = module_graph(CONFIG.model)


@pytest.fixture(scope="module")
def layouts():
    layouts, refused = default_layouts(GRAPH, GlobalRows.from_data(CONFIG.model, CONFIG.data), devices=8)
    assert (len(layouts), refused) == (len(LAYOUT_KINDS), {})
    return layouts


def test_colocated_layouts_agree_and_the_frozen_encoder_has_no_gradient(layouts):
    """In pipeline replicas, in slices and bundles; `python -m mmjax.verify` compares the others."""
    assert GRAPH.names == ("vision", "audio", "backbone", "generator") and "vision" not in CONFIG.trainable
    chosen = [
        layout
        for layout in layouts
        if layout.plan.schedule == "colocated" and layout.plan.units[0].parallelism.pipeline_replicas > 1
    ]
    pipeline_replicas = [[unit.parallelism.pipeline_replicas for unit in layout.plan.units] for layout in chosen]
    assert pipeline_replicas == [[4, 4, 1, 4], [2, 2, 1, 2]]
    settings, data = CONFIG.engine_settings, CONFIG.dataset("train")
    reports = list(verify_run(CONFIG.model, CONFIG.data, data, chosen, settings, steps=1))
    assert [report.layout for report in reports] == [layout.name for layout in chosen]
    for report in reports:
        assert report.ok, report
        errors = {name: module.gradient.error for name, module in report.modules.items() if module.gradient}
        assert {"vision", "audio", "backbone", "generator"} <= errors.keys()  # projectors train with their encoders
        assert all(map(math.isfinite, errors.values())) and errors["audio"] > 0 and errors["backbone"] > 0
