"""Small planning problems of all kinds."""

import dataclasses

import numpy as np
from hypothesis import strategies as st

from configs.architectures import AudioConfig, BackboneConfig, DiTConfig, ModelConfig, UNetConfig, VisionConfig
from configs.clusters import ClusterConfig, Link
from configs.workloads import Lognormal, SampleKind, SyntheticData
from sharding.costs.analytic import AnalyticCostModel
from sharding.planners.problem import PlanningProblem
from sharding.planners.tables.fixed_ranks import FixedRanks
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.layers.layer import LoadColumn
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics, draw_row_loads
from tests.sharding.expert_graphs import with_experts
from tests.sharding.ideal_devices import IDEAL

VISION = VisionConfig(width=64, depth=3, heads=2, ffn=128, patch=16)
AUDIO = AudioConfig(width=64, depth=2, heads=2, ffn=128)
BACKBONE = BackboneConfig(vocabulary=512, width=128, depth=4, heads=4, kv_heads=2, ffn=256)
GENERATOR = UNetConfig(image_size=16, widths=(32,), head_width=16, groups=4, condition_width=32)
TRANSFORMER = DiTConfig(
    image_size=16, patch=2, width=64, heads=2, ffn=128, double_layers=1, single_layers=2, plain_layers=0, qk_norm=True,
    positions="rotary", rotary_axes=(8, 12, 12), condition_width=32,
)  # fmt: skip
"""A generator like Flux.1, which can be cut; a block with two streams takes longer than two with one."""
MODEL = ModelConfig((VISION,), BACKBONE, (GENERATOR,))
ENCODERS = ((), (VISION,), (VISION, AUDIO))
TRAINABLE = (("all",), ("projectors",), ("projectors", "backbone"), ("generator_projector", "generator"))

RANKED = (
    {},
    {"ranks": (("backbone", 2, 1),)},
    {"ranks": (("backbone", 1, 2),), "experts": 4},
    {"ranks": (("vision", 2, 1), ("backbone", 2, 2)), "experts": 4},
)
"""Fixed sequence and expert ranks."""


def cluster(memory: float) -> ClusterConfig:
    """Slow devices of which arrays can take little memory, four in a node."""
    return ClusterConfig(
        name="toy",
        device_kinds=("toy",),
        peak_flops=1e10,
        memory=memory / 0.8,
        allocator_share=0.8,
        fragmentation=0.0,
        memory_bandwidth=1e10,
        devices_per_node=4,
        intra_node=Link(1e9, 1e-6),
        inter_node=Link(1e8, 1e-5),
        generation=IDEAL,
    )


def data(spread: float = 0.4) -> SyntheticData:
    """Rows of 256 tokens with pictures, clips and text."""
    kind = SampleKind(
        text_tokens=Lognormal(20.0, spread),
        image_counts=(0.3, 0.7),
        image_side=Lognormal(100.0, spread, 32.0, 192.0),
        generated_share=0.5,
        clip_counts=(0.5, 0.5),
        clip_seconds=Lognormal(1.0, spread, 0.2, 2.0),
    )
    return SyntheticData(256, ((kind, 1.0),))


def problem(
    model: ModelConfig = MODEL,
    devices: int = 8,
    rows: int = 8,
    memory: float = 1e9,
    trainable: tuple[str, ...] = ("all",),
    chunks: tuple[int, ...] = (1,),
    spread: float = 0.4,
    experts: int = 0,
    ranks: tuple[tuple[str, int, int], ...] = (),
) -> PlanningProblem:
    """A problem on toy devices, whose hops occupy none of them.

    `ranks` are (module, cp, ep), `experts` those of each of the backbone's layers.
    """
    graph, toy = module_graph(model), cluster(memory)
    graph = with_experts(graph, experts) if experts else graph
    statistics = draw_row_loads(data(spread), model, 16)
    trains = trained_parts(graph, trainable)
    given = {name: FixedRanks(cp, ep) for name, cp, ep in ranks}
    return PlanningProblem(
        graph=graph,
        costs=AnalyticCostModel(toy),
        cluster=toy,
        devices=devices,
        rows=rows,
        data=statistics,
        trained_parts=trains,
        chunk_choices=chunks,
        fixed_ranks=given,
        hops="asynchronous",
    )


def uniform(case: PlanningProblem) -> PlanningProblem:
    """The same problem with all rows equal to the mean row, in whole items."""
    mean = {name: case.data.mean_load(name)[None] for name in case.graph.names}
    for load in mean.values():
        load[:, LoadColumn.ITEMS] = np.ceil(load[:, LoadColumn.ITEMS])
    return dataclasses.replace(case, data=RowLoadStatistics(mean))


@st.composite
def recipes(draw: st.DrawFn) -> dict:
    """Arguments of `build_problem`; apart from it, because beartype draws random numbers, which strategies may not."""
    return {
        "encoders": draw(st.sampled_from(ENCODERS)),
        "generators": draw(st.sampled_from([(), (GENERATOR,)])),
        "devices": draw(st.integers(3, 14)),
        "rows": draw(st.sampled_from([2, 6, 8])),
        "memory": draw(st.sampled_from([6e6, 1.2e7, 3e7, 1e9])),
        "trainable": draw(st.sampled_from(TRAINABLE)),
        "chunks": draw(st.sampled_from([(1,), (1, 2)])),
        **draw(st.sampled_from(RANKED)),
    }


def build_problem(recipe: dict) -> PlanningProblem:
    """A problem from its recipe; parts and ranks of modules that the model lacks are left out."""
    recipe = dict(recipe)
    names = {BACKBONE.name, *(encoder.name for encoder in recipe["encoders"])}
    recipe["ranks"] = tuple(ranks for ranks in recipe.get("ranks", ()) if ranks[0] in names)
    model = ModelConfig(recipe.pop("encoders"), BACKBONE, recipe.pop("generators"))
    parts = {part for module in module_graph(model).modules for part in module.trainable_parts} | {"all", "projectors"}
    trainable = tuple(name for name in recipe.pop("trainable") if name in parts)
    return problem(model, trainable=trainable, **recipe)
