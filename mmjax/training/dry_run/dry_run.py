"""A dry run: every distinct program of a plan compiled for GPUs that are not here.

The command and the Python interface call `dry_run`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from configs.architectures import ModelConfig
from configs.clusters import find_cluster
from configs.optimizer import OptimizerConfig
from data.packing.batch_spec import BatchSpec
from data.packing.dealt_phases import row_values
from data.packing.phases.phase_rows import RowValues
from mmjax.training.dry_run.abstract_stages import AbstractStep, abstract_step
from mmjax.training.dry_run.compiled_program import (
    ProgramFigures,
    attention_of_gpus,
    compile_program,
    without_persistent_cache,
)
from mmjax.training.dry_run.device_memory import DeviceMemory, device_memory
from mmjax.training.dry_run.distinct_bundles import distinct_bundles
from mmjax.training.dry_run.distinct_stages import distinct_stages
from mmjax.training.dry_run.full_rows import full_microbatch, full_rows
from mmjax.training.dry_run.matmul_flops import model_flops
from mmjax.training.dry_run.stage_bytes import stage_bytes
from mmjax.training.dry_run.targets import described_devices
from sharding.costs.own_rows import OwnRows
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.stages.compilation import ProgramCall
from sharding.runtime.stages.named_programs import program_name

Callback = Callable[[int, int], None]
"""Called with the number of compiled programs and the number of all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """One compiled program of a plan.

    Attributes:
        name: Its name, such as `backbone_stage1_forward`.
        stands_for: Number of stages, or of pairs of stages of a bundle, whose programs are the same.
        figures: What XLA says of it.
        model_flops: FLOPs of the model's matmuls in it on a device, recomputed ones included; 0 of a program that runs
            once a step, None of a bundle.
    """

    name: str
    stands_for: int
    figures: ProgramFigures
    model_flops: float | None

    @property
    def flops_ratio(self) -> float | None:
        """Compiled FLOPs over the model's; None where the model has none."""
        return self.figures.flops / self.model_flops if self.model_flops else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DryRun:
    """The compiled programs of a plan, and the memory of its devices.

    Attributes:
        target: Name of the device that they are compiled for.
        devices: Number of devices of the plan.
        stages: Number of stages of the plan.
        programs: The distinct programs.
        memory: Memory of the devices.
    """

    target: str
    devices: int
    stages: int
    programs: tuple[CompiledProgram, ...]
    memory: tuple[DeviceMemory, ...]

    @property
    def compile_seconds(self) -> float:
        """Seconds in which all programs were compiled."""
        return sum(program.figures.compile_seconds for program in self.programs)

    @property
    def fullest(self) -> DeviceMemory:
        """The devices with the least memory to spare."""
        return min(self.memory, key=lambda memory: memory.spare_bytes)

    @property
    def fits(self) -> bool:
        """Whether the programs fit into the memory of the devices."""
        return self.fullest.spare_bytes >= 0

    def __repr__(self) -> str:
        fit = "they fit" if self.fits else "they do not fit"
        return f"DryRun({len(self.programs)} programs for {self.target} on {self.devices} devices, {fit})"


def dry_run(
    problem: PlanningProblem,
    plan: Plan,
    model: ModelConfig,
    batch_spec: BatchSpec,
    target: str,
    optimizer: OptimizerConfig,
    callback: Callback = lambda done, total: None,
) -> DryRun:
    """Compiles the programs of a plan for a target, and compares their memory with what planners count.

    Args:
        problem: The problem that the plan is for; it simulates the step.
        plan: The plan.
        model: The model.
        batch_spec: Shapes of a global batch.
        target: One of `targets.TARGETS`.
        optimizer: The optimizer, whose updates are compiled too.
        callback: Called at the start, and after each program.

    Raises:
        UserError: There is no such target, no plugin to compile for it, or a program that does not compile.
        PlanError: The plan cannot hold the model or the batch.
    """
    per_node = problem.cluster.devices_per_node
    devices = described_devices(target, problem.devices, per_node)
    resolved = problem.resolve(plan)
    with attention_of_gpus():
        step = abstract_step(model, resolved, batch_spec, devices, per_node, optimizer)
        groups = distinct_stages(step.stages)
        alike = {stage_id: first for first, group in groups.items() for stage_id in group}
        bundles = distinct_bundles(step, alike)
        calls = {first: [*step.stages[first].microbatch_calls(), *step.stages[first].step_calls] for first in groups}
    done, total = 0, sum(map(len, calls.values())) + len(bundles)

    def compiled(call: ProgramCall) -> ProgramFigures:
        nonlocal done
        with without_persistent_cache():
            figures = compile_program(call, target)
        done += 1
        callback(done, total)
        return figures

    callback(0, total)
    values = row_values(model, batch_spec)
    flops = _ModelFlops(problem, resolved, values, step)
    programs, held = [], {}
    for first, group in groups.items():
        figures = {call.program.__name__: compiled(call) for call in calls[first]}
        bytes_ = stage_bytes(step.stages[first], figures)
        held |= dict.fromkeys(group, bytes_)
        programs += [
            CompiledProgram(name=name, stands_for=len(group), figures=of_program, model_flops=flops.of(first, name))
            for name, of_program in figures.items()
        ]
    programs += [
        CompiledProgram(name=call.program.__name__, stands_for=count, figures=compiled(call), model_flops=None)
        for call, count in bundles
    ]
    return DryRun(
        target=target,
        devices=plan.device_count,
        stages=len(step.stages),
        programs=tuple(programs),
        memory=device_memory(
            problem.simulate(plan),
            problem.simulate(plan, rows=full_rows(resolved.graph, problem.sampled_rows, values, step.phases)),
            held,
            _capacities(problem, plan, step),
            find_cluster(target).usable_memory,
        ),
    )


class _ModelFlops:
    """FLOPs of the model's matmuls in the programs of stages, whose rows are full."""

    def __init__(
        self,
        problem: PlanningProblem,
        resolved: ResolvedPlan,
        values: Mapping[str, RowValues],
        step: AbstractStep,
    ) -> None:
        self._resolved = resolved
        rows = problem.rows // resolved.plan.microbatches
        most = max((len(phase.capacities) for phase in step.phases.values()), default=1)
        self._loads = [
            full_microbatch(resolved, problem.data, rows, values, step.phases, capacity) for capacity in range(most)
        ]

    def of(self, stage: StageId, name: str) -> float:
        """FLOPs of a program on a device, of all microbatches of a compiled unit; 0 of one that runs once a step."""
        kind, _, capacity = name.removeprefix(program_name(stage, "")).partition("_capacity")
        if kind not in ("forward", "backward", "dgrad", "wgrad", "step"):
            return 0.0
        loads = self._loads[int(capacity) if capacity else -1]
        plan = self._resolved.plan
        is_compiled = next(unit.is_compiled for unit in plan.units if unit.name == stage[0])
        return (plan.microbatches if is_compiled else 1) * model_flops(self._resolved, stage, loads, kind)


def _capacities(problem: PlanningProblem, plan: Plan, step: AbstractStep) -> Mapping[StageId, Sequence[int]]:
    """By stage, the number of the capacity with which each simulated microbatch runs."""
    numbers = {}
    for unit in plan.units:
        own_rows = OwnRows(unit.phase_rows, unit.capacities)
        numbers[unit.name] = (
            problem.sampled_costs.capacity_numbers(unit.modules[0], plan.microbatches, own_rows).tolist()
            if unit.capacities
            else [0] * plan.microbatches
        )
    return {stage_id: numbers[stage_id[0]] for stage_id in step.stages}
