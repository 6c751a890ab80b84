"""The layers of every stage of a plan, counted by hand, and that no stage keeps copies of its weights."""

import dataclasses

import jax
import numpy as np
import pytest

from configs.architectures import ModelConfig
from mmjax.models.model import model_modules
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.engine.stage_layouts import layer_stack_shapes, make_stage_layouts
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from tests.tiers import first_in_default
from tests.tiny_model import BACKBONE, GENERATOR, VISION, tiny_batch, tiny_model
from tests.unit_plans import module_unit


def layouts(*units, config=None):
    config = config or tiny_model()
    return make_stage_layouts(ResolvedPlan(Plan(units), module_graph(config)), model_modules(config))


def table(layout):
    """(key, layers) of every run."""
    return [(run.parameter_key, " ".join(run.layers)) for run in layout.piece_runs]


def test_every_module_a_unit_of_one_stage():
    stage_layouts = layouts(
        module_unit("vision", (0,), layers=(2,), name="v"),
        module_unit("backbone", (1,), layers=(3,), name="b"),
        module_unit("generator", (2,), name="g"),
    )
    assert table(stage_layouts["v", 0]) == [
        ("vision/embed", "000"), ("vision/blocks", "000 001"), ("vision/norm", "000"), ("vision/projector", "000"),
    ]  # fmt: skip
    assert (stage_layouts["v", 0].inputs, stage_layouts["v", 0].outputs) == ((), ("vision>backbone",))
    assert (stage_layouts["b", 0].inputs, stage_layouts["b", 0].outputs) == (
        ("vision>backbone",),
        ("backbone>generator",),
    )
    assert table(stage_layouts["g", 0]) == [("generator/projector", "000"), ("generator/unet", "000")]
    assert (stage_layouts["g", 0].inputs, stage_layouts["g", 0].outputs) == (("backbone>generator",), ())


def test_uneven_stages_of_one_module_pass_activations_on():
    stage_layouts = layouts(
        module_unit("vision", (0,), layers=(2,), name="v"),
        module_unit("backbone", (1, 2), layers=(2, 1), name="b", recompute=("full", "none")),
        module_unit("generator", (3,), name="g"),
    )
    first, second = stage_layouts["b", 0], stage_layouts["b", 1]
    assert table(first) == [("backbone/embed", "000"), ("backbone/blocks", "000 001")]
    assert table(second) == [("backbone/blocks", "002"), ("backbone/head", "000")]
    assert (first.inputs, first.outputs) == (("vision>backbone",), ("backbone#2",))
    assert (second.inputs, second.outputs) == (("backbone#2",), ("backbone>generator",))
    assert [{run.recompute for run in layout.piece_runs} for layout in (first, second)] == [{"full"}, {"none"}]
    assert first.batch_arrays() == {"backbone": ("tokens", "vision_index", "segments", "branches", "positions")}
    assert set(second.batch_arrays()["backbone"]) == {
        "segments", "branches", "positions", "targets", "weights", "generator_conditions",
    }  # fmt: skip


def test_several_modules_in_a_unit_are_cut_anywhere():
    stage_layouts = layouts(
        UnitPlan("vb", ("vision", "backbone"), (0, 1, 2), layers=(1, 2, 2), recompute=("none",) * 3),
        module_unit("generator", (0,), name="g"),
    )
    assert [table(stage_layouts["vb", stage]) for stage in range(3)] == [
        [("vision/embed", "000"), ("vision/blocks", "000")],
        [
            ("vision/blocks", "001"), ("vision/norm", "000"), ("vision/projector", "000"),
            ("backbone/embed", "000"), ("backbone/blocks", "000"),
        ],
        [("backbone/blocks", "001 002"), ("backbone/head", "000")],
    ]  # fmt: skip
    assert [stage_layouts["vb", stage].inputs for stage in range(3)] == [(), ("vision#1",), ("backbone#1",)]
    assert stage_layouts["g", 0].inputs == stage_layouts["vb", 2].outputs == ("backbone>generator",)


def test_a_whole_model_on_one_stage_has_no_channels():
    (layout,) = layouts(UnitPlan("all", ("vision", "backbone", "generator"), (0,), layers=(6,))).values()
    assert (layout.inputs, layout.outputs) == ((), ())
    assert len(layout.piece_runs) == 9


def test_a_tied_embedding_is_borrowed_only_from_another_stage():
    config = tiny_model(tie_embeddings=True)
    one, two = (
        layouts(
            module_unit("vision", (0,), layers=(2,), name="v"),
            module_unit("backbone", range(1, 1 + len(layers)), layers=layers, name="b", recompute=recompute),
            module_unit("generator", (3,), name="g"),
            config=config,
        )
        for layers, recompute in (((3,), ("none",)), ((1, 2), ("none",) * 2))
    )
    assert not layer_stack_shapes(one["b", 0])["backbone/head"].tied_shapes
    head = layer_stack_shapes(two["b", 1])["backbone/head"]
    assert {path: shape.shape for path, shape in head.tied_shapes.items()} == {"embedding": (24, 16)}
    assert set(head.shapes) == {"norm"}
    assert layer_stack_shapes(two["b", 0])["backbone/embed"].shapes["embedding"].shape == (24, 16)


# ---------------------------------------------------------------- residuals of real stages, by their shapes

# Wide, so that the smallest share of a matrix (64 x 64 over two tensor ranks) is larger than any vector of all layers.
WIDE = ModelConfig(
    (dataclasses.replace(VISION, width=64, ffn=96),),
    dataclasses.replace(BACKBONE, width=128, ffn=192, vocabulary=192),
    (dataclasses.replace(GENERATOR, widths=(64,), condition_width=64),),
)
MATRIX, VECTORS = 64 * 64 // 2, 3 * 4 * 64


def residuals(recompute: str, rows: int, trainable: tuple[str, ...], collectives: str = "all_reduce") -> dict:
    """By stage, the shapes on one device of all residuals of a microbatch; nothing is compiled."""
    plan = Plan(
        (
            module_unit("vision", (0, 1), layers=(2,), name="v", recompute=(recompute,), dp=2),
            module_unit(
                "backbone",
                (0, 1, 2, 3),
                layers=(3,),
                name="b",
                recompute=(recompute,),
                dp=2,
                tp=2,
                collectives=collectives,
            ),
            module_unit(
                "generator", (2, 3), layers=(1,), name="g", recompute=(recompute,), dp=1, tp=2, collectives=collectives
            ),
        )
    )
    engine = Engine(WIDE, plan, tiny_batch(WIDE, rows), EngineSettings(trainable=trainable))
    shapes = {}
    for node, stage in engine.executor.stages.items():
        programs = stage.programs
        _, kept, _ = jax.eval_shape(programs.forward, *programs.operand_shapes, jax.eval_shape(programs.zero_losses))
        shapes[node] = [leaf.shape[1:] for leaf in kept]
    return shapes


@pytest.mark.parametrize(
    ("recompute", "trainable", "collectives"),
    first_in_default(
        [
            ("none", ("all",), "all_reduce"),
            ("selective", ("all",), "all_reduce"),
            ("full", ("all",), "all_reduce"),
            ("none", ("projectors",), "all_reduce"),
            ("none", ("all",), "ring"),
            ("selective", ("all",), "ring"),
        ]
    ),
)
def test_residuals_of_real_stages_are_activations(recompute, trainable, collectives):
    """All grow with the rows but numbers and vectors (scales, biases): not one has the size of a matrix."""
    assert VECTORS < MATRIX
    small, large = (residuals(recompute, rows, trainable, collectives) for rows in (4, 8))
    assert set(small) == {("v", 0), ("b", 0), ("g", 0)}
    for node in small:
        sizes = [(np.prod(one), np.prod(two)) for one, two in zip(small[node], large[node], strict=True)]
        assert any(two == 2 * one for one, two in sizes)
        for shape, (one, two) in zip(small[node], sizes, strict=True):
            assert two == 2 * one or (two == one and one <= VECTORS), (node, shape)


def test_sequence_parallelism_divides_the_residuals_of_a_stage():
    """All between the layers, that is: a rank keeps its positions, and everything inside attention and MLP is split."""
    whole, divided = (
        {node: sum(map(np.prod, shapes)) for node, shapes in residuals("selective", 8, ("all",), how).items()}
        for how in ("all_reduce", "ring")
    )
    assert divided["b", 0] < 0.8 * whole["b", 0]
