"""Megatron-LM's layout with all encoders in the backbone's first stage, for the same samples.

Nothing is balanced, and nothing padded, which favours this baseline. The encoders have as many tensor ranks as the
backbone: replicated over them, the encoders of MLLM-84B alone would take more than a device's memory. Where 8 ranks do
not divide an encoder's heads, it has another number of heads of the same total width: 16 for Whisper large's 20, 32 for
InternViT-6B's 25.
"""

import dataclasses
import functools
from collections.abc import Sequence

from benchmarks.dispatch.least_recompute import LayerPolicies, SimulatedMemory, least_recompute
from benchmarks.dispatch.samples import StepSamples
from benchmarks.dispatch.settings import TENSOR_RANKS, Megatron
from benchmarks.dispatch.steps import problem_of
from configs.architectures import EncoderConfig
from configs.workloads import SyntheticData
from sharding.planners.layouts.placement import make_unit
from sharding.planners.problem import PlanningProblem
from sharding.plans.parallelism import CollectivesName
from sharding.plans.plan import Plan
from sharding.simulation.timeline import Timeline
from sharding.specs.layers.layer import LoadColumn

MICROBATCH_SAMPLES = (1, 2, 4, 8, 16)
"""Samples of a replica's microbatch to choose from; the paper states none."""
COLLECTIVES: tuple[CollectivesName, ...] = ("sequence_parallel", "ring")
"""Tensor-parallel collectives to choose from: exposed, and overlapped with the matmuls as Megatron-LM's option
`--tp-comm-overlap` does; the paper does not say whether it is set."""


@dataclasses.dataclass(frozen=True, eq=False)
class MegatronStep:
    """The fastest step that fits.

    Attributes:
        timeline: The simulated step.
        memory: Share of a device's memory.
        microbatch: Samples of a replica's microbatch.
        collectives: Its tensor-parallel collectives.
    """

    timeline: Timeline
    memory: float
    microbatch: int
    collectives: CollectivesName


def simulate_megatron(
    samples: StepSamples,
    data: SyntheticData,
    layout: Megatron,
    devices: int,
    choices: Sequence[CollectivesName] = COLLECTIVES,
) -> MegatronStep:
    """Returns the step of Megatron-LM's layout; where none fits, the one that comes nearest.

    Args:
        samples: At least as many samples as a global batch has.
        data: Their description.
        layout: The layout.
        devices: Number of devices.
        choices: Tensor-parallel collectives to choose from.
    """
    dp = devices // (TENSOR_RANKS * layout.pp)
    encoders = tuple(map(_with_divisible_heads, samples.model.encoders))
    samples = dataclasses.replace(samples, model=dataclasses.replace(samples.model, encoders=encoders))
    candidates: list[tuple[SimulatedMemory, PlanningProblem, int, CollectivesName]] = []
    for microbatch in MICROBATCH_SAMPLES:
        if layout.samples % (dp * microbatch):
            continue
        rows = {
            module: loads[: layout.samples].reshape(-1, microbatch, len(LoadColumn)).sum(axis=1)
            for module, loads in samples.loads.items()
        }
        problem = problem_of(samples, data, rows, devices)
        for collectives in choices:
            run = functools.partial(_simulate, problem, layout, dp, collectives)
            plans = least_recompute(problem.recompute_choices, run)
            for simulated in plans.fitting or (plans.nearest,):
                candidates.append((simulated, problem, microbatch, collectives))
    fitting = [candidate for candidate in candidates if candidate[0].memory <= 1]
    best, problem, microbatch, collectives = min(
        fitting or candidates, key=lambda candidate: candidate[0].step if fitting else candidate[0].memory
    )
    return MegatronStep(problem.simulate(best.plan, rows=problem.data.loads), best.memory, microbatch, collectives)


def _with_divisible_heads(encoder: EncoderConfig) -> EncoderConfig:
    """The encoder with that number of heads nearest to its own which the tensor ranks divide, and which divides it."""
    counts = [count for count in range(TENSOR_RANKS, encoder.width, TENSOR_RANKS) if encoder.width % count == 0]
    return dataclasses.replace(encoder, heads=min(counts, key=lambda count: abs(count - encoder.heads)))


def _simulate(
    problem: PlanningProblem, layout: Megatron, dp: int, collectives: CollectivesName, policies: LayerPolicies
) -> SimulatedMemory:
    backbone = problem.graph.backbone
    layers = (backbone.layer_count // layout.pp,) * layout.pp
    unit = make_unit(
        (backbone.name,),
        dp=dp,
        tp=TENSOR_RANKS,
        layers=layers,
        recompute=policies.recompute,
        collectives=collectives,
    )
    unit = dataclasses.replace(unit, recompute=tuple(map(policies.of_stage, layers)))
    encoders = []
    for module in (module for module in problem.graph.modules if not module.is_backbone):
        encoder_unit = make_unit(
            (module.name,),
            dp=dp,
            tp=TENSOR_RANKS,
            layers=(module.layer_count,),
            recompute=policies.recompute,
            collectives=collectives,
        )
        encoders.append(
            dataclasses.replace(
                encoder_unit, devices=unit.stage_devices(0), recompute=(policies.of_stage(module.layer_count),)
            )
        )
    plan = Plan((*encoders, unit), problem.rows // dp)
    timeline = problem.simulate(plan, rows=problem.data.loads)
    return SimulatedMemory(plan, timeline.step, problem.memory_fraction(timeline))
