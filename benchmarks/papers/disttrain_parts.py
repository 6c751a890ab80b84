"""DistTrain's figures of single parts: forwards, the solver, reordering, preprocessing, overlapped collectives.

The solver, reordering and preprocessing run on this machine, and are timed by its processor; the rest is simulated.
"""

import dataclasses
import io
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image

from benchmarks import service
from benchmarks.balancing.reordering import make_reorderer
from benchmarks.papers import disttrain
from benchmarks.papers.paper_rows import Band, Figure, PaperRow, ReportProgress, Unit, exactly
from benchmarks.papers.ranges import step_figure
from benchmarks.planner import speed
from benchmarks.planner.disttrain_models import BATCH, RIGID_PP
from configs.architectures import ModelConfig
from configs.workloads import Lognormal, SampleKind, SyntheticData, Workload
from data.media.images import read_image
from data.media.patches import patchify, resize_to_fit
from data.records import Media
from mmjax import cli
from mmjax.planning.cluster_files import read_cluster
from mmjax.planning.problem import make_problem
from sharding.costs.published_errors import error_families
from sharding.html.numbers import count_of
from sharding.planners.layouts.layout_search import search_layouts
from sharding.planners.layouts.placement import make_unit
from sharding.planners.policies import rigid
from sharding.planners.policies.best_plan import best_simulated
from sharding.planners.problem import PlanningProblem
from sharding.plans.parallelism import CollectivesName
from sharding.plans.plan import Plan
from sharding.specs.row_load_statistics import RowLoadStatistics, draw_sample_loads

ROW_TOKENS, PATCH, DELIMITERS = 8192, 16, 2
FORWARDS = "figure 3, forward of a microbatch"
SOLVER, REORDERING_TIME = "section 8.2, the solver's time", "table 3, the time of reordering"
PREPROCESSING, OVERLAP = "figure 21, preprocessing", "figure 22, overlapped collectives"

IMAGES = ((8, 256), (16, 256), (2, 512), (4, 512), (7, 512), (1, 1024))
"""Images of a row and their side in pixels; the text at hand does not list the figure's own."""

REPLICAS = (30, 60, 120)
"""DP sizes at which the paper times reordering."""

TENSOR_RANKS = (4, 8)
COLLECTIVES: dict[str, CollectivesName] = {"exposed": "sequence_parallel", "overlapped": "ring"}
REPEATS = 5


def rows(report_progress: ReportProgress) -> Iterator[PaperRow]:
    """All rows of parts."""
    for images, side in IMAGES:
        yield from forward_rows(images, side)
    for name in RIGID_PP:
        for tp in TENSOR_RANKS:
            yield from overlap_rows(name, tp)
    report_progress("timing the solver and reordering of DistTrain's problems")
    for devices, batch in speed.SIZES:
        yield solver_row(devices, batch)
    for replicas in REPLICAS:
        yield reordering_row(replicas)
    report_progress("timing preprocessing")
    for images, side in IMAGES:
        yield from preprocessing_rows(images, side)


def forward_rows(images: int, side: int) -> Iterator[PaperRow]:
    """Forwards of encoder, one stage of the backbone (70B, PP 10, TP 8) and generator, in Megatron-LM's layout."""
    small, large = (_configured(name)[0] for name in ("mllm_9b", "mllm_72b"))
    model = large if side > 512 else dataclasses.replace(large, generators=small.generators)
    tokens = images * ((side // PATCH) ** 2 + DELIMITERS)
    kind = SampleKind(
        text_tokens=Lognormal(ROW_TOKENS - tokens, 0.0),
        image_counts=(0.0,) * images + (1.0,),
        image_side=Lognormal(side, 0.0),
        generated_share=1.0,
    )
    data = SyntheticData(ROW_TOKENS, ((kind, 1.0),), one_document=True)
    microbatches = pp = RIGID_PP["mllm_72b"]
    workload = Workload(model, data, microbatches)
    alike = RowLoadStatistics(draw_sample_loads(data, model, 1).loads)
    devices = (pp + 2) * max(TENSOR_RANKS)
    problem = make_problem(workload, alike, read_cluster(disttrain.CLUSTER), devices)
    rigid_plan = best_simulated(problem, rigid.plans(problem, pp)).plan
    families = error_families(rigid_plan, problem.graph)
    stages = problem.step_costs(rigid_plan).stages
    for unit in rigid_plan.units:
        seconds = max(float(costs.forward.max()) for (name, _), costs in stages.items() if name == unit.name)
        system = f"a stage of {unit.name}" if unit.name == problem.graph.backbone.name else unit.name
        yield _row(
            FORWARDS,
            images_of(images, side),
            system,
            "seconds of a forward",
            "seconds",
            step_figure(seconds, families),
            "encoder and generator are replicated over 8 devices, which divide the images of a row",
            "every image is generated as well",
        )


def images_of(images: int, side: int) -> str:
    """A row of figures by images, such as "2 images of 512 x 512"."""
    return f"{count_of(images, 'image')} of {side} x {side}"


def overlap_rows(name: str, tp: int) -> Iterator[PaperRow]:
    """Forward and backward of one pipeline stage, with tensor-parallel collectives exposed, and beside matmuls."""
    model, data = _configured(name)
    depth = model.backbone.depth // RIGID_PP[name]
    stage = dataclasses.replace(
        model, encoders=(), generators=(), backbone=dataclasses.replace(model.backbone, depth=depth)
    )
    text = dataclasses.replace(
        data, kinds=((SampleKind(text_tokens=Lognormal(ROW_TOKENS, 0.0)), 1.0),), one_document=True
    )
    alike = RowLoadStatistics(draw_sample_loads(text, stage, 1).loads)
    problem = make_problem(Workload(stage, text, 1), alike, read_cluster(disttrain.CLUSTER), tp)
    for label, collectives in COLLECTIVES.items():
        unit = make_unit(
            (stage.backbone.name,), dp=1, tp=tp, layers=(depth,), recompute="none", collectives=collectives
        )
        plan = Plan((unit,), 1)
        (costs,) = problem.step_costs(plan).stages.values()
        seconds = float(costs.forward.max() + costs.backward.max())
        yield _row(
            OVERLAP,
            f"{disttrain.MODEL_NAMES[name]}, {depth} layers, TP {tp}",
            label,
            "seconds of forward and backward",
            "seconds",
            step_figure(seconds, error_families(plan, problem.graph)),
            "one microbatch of 8,192 tokens, nothing recomputed; embedding and head included",
        )


def solver_row(devices: int, batch: int) -> PaperRow:
    """The time from the costs of the modules to the exact integer plan of MLLM-72B."""
    problem = speed.every_candidate(*_configured("mllm_72b"), devices, batch)
    _ = problem.module_tables  # the paper interpolates trial runs instead
    figure = timed(lambda: search_layouts(problem.with_devices(devices)))
    published = speed.PAPER.get(devices)
    row = _row(
        SOLVER,
        f"{devices:,} GPUs, batch {batch:,}",
        disttrain.DISTTRAIN,
        "seconds",
        "seconds",
        figure,
        "every tensor-parallel size is allowed for every module; the least to the longest of five runs here",
    )
    return dataclasses.replace(row, published=None if published is None else exactly(published))


def reordering_row(replicas: int) -> PaperRow:
    """The time of reordering 1,920 rows of MLLM-72B over so many pipelines of Megatron-LM's layout."""
    pp = RIGID_PP["mllm_72b"]
    devices = (pp + 2) * max(TENSOR_RANKS) * replicas
    problem = disttrain.problem_of("mllm_72b", ("all",), devices, BATCH)
    return reordering_time_row(f"DP {replicas}", problem, best_simulated(problem, rigid.plans(problem, pp)).plan)


def reordering_time_row(title: str, problem: PlanningProblem, plan: Plan) -> PaperRow:
    """The time of reordering a problem's rows for a plan."""
    reorderer = make_reorderer(problem, plan, "search")
    drawn = problem.sampled_rows
    reorderer.row_order(drawn)  # the first call knows nothing of the plan yet
    return _row(
        REORDERING_TIME,
        title,
        disttrain.DISTTRAIN,
        "milliseconds of reordering a batch",
        "milliseconds",
        _scaled(timed(lambda: reorderer.row_order(drawn)), 1e3),
        "our search over both algorithms, for pipelines of Megatron-LM's layout; the least to the longest of five",
    )


def preprocessing_rows(images: int, side: int) -> Iterator[PaperRow]:
    """The time that a batch of one row takes the trainer: decoded by itself, and received from the service."""
    content = _photograph(side)
    title = images_of(images, side)
    in_process = timed(lambda: [_decode(content, side) for _ in range(images)])
    yield _row(
        PREPROCESSING,
        title,
        "in the trainer",
        "milliseconds of a row",
        "milliseconds",
        _scaled(in_process, 1e3),
        "processor time of the trainer; a JPEG of smooth noise and grain is decoded and divided into float32 patches",
    )
    megabytes = max(1, round(images * side**2 * 3 * 4 / 1e6))
    with service.by_flight(megabytes) as connect:
        fetch = connect()
        fetch()  # the first request opens the connection
        received = timed(fetch)
    yield _row(
        PREPROCESSING,
        title,
        "from the service",
        "milliseconds of a row",
        "milliseconds",
        _scaled(received, 1e3),
        f"{megabytes} MB over loopback, where receiving copies; requests are sent ahead of the step",
    )


def timed(call: Callable[[], object]) -> Figure:
    """The median processor seconds of some calls, which run on one core, from the least to the longest."""
    seconds = []
    for _ in range(REPEATS):
        begin = time.process_time()
        call()
        seconds.append(time.process_time() - begin)
    return Figure("measured", exactly(statistics.median(seconds)), Band(min(seconds), max(seconds)))


def _scaled(figure: Figure, factor: float) -> Figure:
    assert figure.range is not None
    value, range_ = (Band(band.least * factor, band.most * factor) for band in (figure.value, figure.range))
    return Figure(figure.kind, value, range_)


def _decode(content: bytes, side: int) -> None:
    image = resize_to_fit(read_image(Media("a photograph", content=content)), PATCH, (side // PATCH) ** 2)
    patches, _ = patchify(image, PATCH, 1)
    if patches.shape != ((side // PATCH) ** 2, PATCH**2 * 3):
        raise AssertionError(f"{side} pixels gave patches {patches.shape}")


def _photograph(side: int) -> bytes:
    """A JPEG about as large as a photograph's: smooth noise and some grain."""
    random = np.random.default_rng(0)
    smooth = Image.fromarray(random.integers(0, 256, (side // 32, side // 32, 3), np.uint8)).resize((side, side))
    grain = random.normal(0, 4, (side, side, 3))
    stream = io.BytesIO()
    pixels = np.clip(np.asarray(smooth, float) + grain, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def _configured(name: str) -> tuple[ModelConfig, SyntheticData]:
    cli.parse_gin((f"models/{name}.gin", disttrain.DATA))
    return cli.configured(ModelConfig), cli.configured(SyntheticData)


def _row(place: str, title: str, system: str, quantity: str, unit: Unit, figure: Figure, *assumptions: str) -> PaperRow:
    return PaperRow(
        paper=disttrain.PAPER,
        place=place,
        row=title,
        system=system,
        quantity=quantity,
        unit=unit,
        at_layout=figure,
        assumptions=assumptions,
    )
