"""The module graph of a model, and the axes a module is given."""

import pytest

from configs.architectures import AudioConfig, BackboneConfig, ModelConfig, UNetConfig, VisionConfig
from sharding.axes import Axes
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph, module_graph


def test_encoders_feed_the_backbone_which_feeds_the_generators():
    config = ModelConfig(
        encoders=(VisionConfig(name="near", depth=3), VisionConfig(name="far")),
        backbone=BackboneConfig(depth=5),
        generators=(UNetConfig(name="paint"), UNetConfig(name="draw")),
    )
    graph = module_graph(config)
    assert graph.names == ("near", "far", "backbone", "paint", "draw")
    assert graph.edges == (("near", "backbone"), ("far", "backbone"), ("backbone", "paint"), ("backbone", "draw"))
    assert [module.layer_count for module in graph.modules] == [3, 2, 5, 1, 1]
    assert [module.divisible for module in graph.modules] == [True, True, True, False, False]


def test_splits_are_what_tensor_parallelism_divides():
    graph = module_graph(ModelConfig())
    assert dict(graph["vision"].tensor_splits) == {"heads": 4, "ffn": 256, "projector width": 128}
    assert dict(graph["backbone"].tensor_splits) == {"heads": 4, "kv_heads": 2, "ffn": 256}
    widths = {"widths[0]": 32, "widths[1]": 64, "projector width": 2 * ModelConfig().generators[0].condition_width}
    assert dict(graph["generator"].tensor_splits) == {**widths, "groups": 8, "heads[1]": 4}


def test_an_audio_encoder_has_the_same_place_in_the_graph_as_a_vision_encoder():
    graph = module_graph(ModelConfig(encoders=(VisionConfig(), AudioConfig(depth=7, heads=8, ffn=96))))
    assert graph["backbone"].inputs == ("vision", "audio")
    assert graph["audio"].layer_count == 7 and graph["audio"].divisible
    assert dict(graph["audio"].tensor_splits) == {"heads": 8, "ffn": 96, "projector width": 128}


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ((ModuleSpec("a", 1), ModuleSpec("a", 1)), "module a is in the graph twice"),
        ((ModuleSpec("a", 1, inputs=("b",)), ModuleSpec("b", 1)), "module a is fed by b"),
    ],
)
def test_a_graph_that_is_not_in_topological_order_is_refused(modules, message):
    with pytest.raises(ValueError, match=message):
        ModuleGraph(modules)


def test_a_module_without_layers_and_an_unknown_module_are_refused_by_name():
    with pytest.raises(ValueError, match="module a has 0 layers"):
        ModuleSpec("a", 0)
    with pytest.raises(KeyError, match="no module c; there are a"):
        ModuleGraph((ModuleSpec("a", 1),))["c"]


def test_one_mesh_axis_cannot_split_both_rows_and_widths():
    assert Axes(data=("data", "a"), tensor=("b",)).expert == ()
    with pytest.raises(ValueError, match="Axes.tensor shares a with"):
        Axes(data=("data", "a"), tensor=("a",))
