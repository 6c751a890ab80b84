"""The rows of one model: steps on 2,560 devices with Megatron-LM's beside them, and the ablations on 128."""

from typing import Any

from benchmarks.dispatch.arrangement import (
    ALL_PADDED,
    BACKBONE_ONLY,
    NONE_PADDED,
    NOT_NODE_WISE,
    ORCHMLLM,
    PADDED_RULE,
    UNBALANCED,
    UNPADDED_RULE,
    Balancing,
    arrange,
)
from benchmarks.dispatch.megatron import simulate_megatron
from benchmarks.dispatch.samples import StepSamples
from benchmarks.dispatch.settings import (
    ABLATION_DEVICES,
    DEVICES,
    PAPER_MFU,
    UNBALANCED_GOAL,
    ModelSetting,
)
from benchmarks.dispatch.steps import CLUSTER, Step, simulate_balanced
from benchmarks.dispatch.traffic import all_gather_seconds, gathered_bytes
from benchmarks.rows import paper_row
from configs.workloads import SyntheticData
from sharding.costs.analytic import AnalyticCostModel

OURS, PACKED, NONE = "ours", "ours, clips packed as in mmjax", "unbalanced"
ABLATIONS = {
    NONE: UNBALANCED,
    "backbone alone balanced": BACKBONE_ONLY,
    "rule with padding in all phases": PADDED_RULE,
    "rule without padding in all phases": UNPADDED_RULE,
    "all phases padded": ALL_PADDED,
    "without node-wise placement": NOT_NODE_WISE,
    OURS: ORCHMLLM,
    PACKED: NONE_PADDED,
}


def cluster_rows(
    name: str, setting: ModelSetting, samples: StepSamples, data: SyntheticData
) -> tuple[list[dict[str, Any]], float]:
    """Rows of the steps on 2,560 devices; how many times Megatron-LM's throughput ours has.

    Args:
        name: The model.
        setting: Its batches and layouts.
        samples: Samples of the balanced step on 2,560 devices; the other steps take the first of them.
        data: Their description.
    """
    title = f"{name}, {DEVICES:,} devices"
    megatron = simulate_megatron(samples, data, setting.megatron, DEVICES)
    timeline = megatron.timeline
    throughput = timeline.tokens_per_second / DEVICES
    rows = _figures(f"{title}, Megatron-LM", timeline.mfu, timeline.mfu_whole_squares, throughput, megatron.memory)
    rows.append(paper_row(f"{title}, Megatron-LM: samples of a microbatch", megatron.microbatch))
    unbalanced = samples.first(setting.mini_batches.unbalanced)
    steps = {
        NONE: _step(unbalanced, data, UNBALANCED),
        OURS: _step(samples, data, ORCHMLLM),
        PACKED: _step(samples, data, NONE_PADDED),
    }
    for label, step in steps.items():
        goal = PAPER_MFU.get(name) if label == OURS else None
        rows += _step_rows(f"{title}, {label}", step, goal)
    over = {label: step.tokens_per_device / steps[NONE].tokens_per_device for label, step in steps.items()}
    rows.append(paper_row(f"{title}, ours: throughput over unbalanced", over[OURS], goal=UNBALANCED_GOAL))
    rows.append(paper_row(f"{title}, clips packed: throughput over unbalanced", over[PACKED], goal=UNBALANCED_GOAL))
    at_end = [
        _step(step_samples, data, balancing, waits_for=1)
        for step_samples, balancing in ((unbalanced, UNBALANCED), (samples, ORCHMLLM))
    ]
    ratio = at_end[1].tokens_per_device / at_end[0].tokens_per_device
    rows.append(
        paper_row(f"{title}, ours: throughput over unbalanced, if replicas waited at the step's end alone", ratio)
    )
    over_megatron = steps[OURS].tokens_per_device / throughput
    return [*rows, paper_row(f"{title}, ours: throughput over Megatron-LM", over_megatron)], over_megatron


def ablation_rows(name: str, samples: StepSamples, data: SyntheticData) -> list[dict[str, Any]]:
    """Rows of the steps on 128 devices, all with the same samples."""
    title, rows, throughput = f"{name}, {ABLATION_DEVICES} devices", [], {}
    steps = {label: _step(samples, data, balancing) for label, balancing in ABLATIONS.items()}
    costs = AnalyticCostModel(CLUSTER, element_bytes=samples.model.element_bytes)
    arrangement = arrange(samples, ORCHMLLM, CLUSTER.devices_per_node)
    gathering = all_gather_seconds(arrangement.exchanges, ABLATION_DEVICES, costs)
    steps["all-gathers instead of all-to-alls"] = simulate_balanced(
        samples, data, ORCHMLLM, arrangement, exchange_seconds=gathering
    )
    for label, step in steps.items():
        rows += _step_rows(f"{title}, {label}", step)
        throughput[label] = step.tokens_per_device
    rows += [
        paper_row(f"{title}, {label}: throughput over unbalanced", value / throughput[NONE])
        for label, value in throughput.items()
        if label != NONE
    ]
    held = max(gathered_bytes(exchange, ABLATION_DEVICES) for exchange in arrangement.exchanges)
    return [*rows, paper_row(f"{title}, largest all-gather: share of a device's memory", held / CLUSTER.memory)]


def _step(samples: StepSamples, data: SyntheticData, balancing: Balancing, **options: Any) -> Step:
    arrangement = arrange(samples, balancing, CLUSTER.devices_per_node)
    return simulate_balanced(samples, data, balancing, arrangement, **options)


def _step_rows(title: str, step: Step, published: float | None = None) -> list[dict[str, Any]]:
    figures = _figures(title, step.mfu, step.mfu_whole_squares, step.tokens_per_device, step.memory, published)
    return [
        *figures,
        paper_row(f"{title}: seconds of a step", step.seconds),
        paper_row(f"{title}: of these, exchanges", step.exchange),
    ]


def _figures(
    title: str, mfu: float, whole: float, throughput: float, memory: float, published: float | None = None
) -> list[dict[str, Any]]:
    return [
        paper_row(f"{title}: MFU", mfu, published, published),
        paper_row(f"{title}: MFU, squares whole", whole, published),
        paper_row(f"{title}: backbone tokens a second and device", throughput),
        paper_row(f"{title}: share of a device's memory", memory),
    ]
