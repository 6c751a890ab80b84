"""Executed work: FLOPs computed in the rows of all modules, padding included, over the FLOPs of the samples.

Counted exactly from the sizes of planned steps, without attention: with rows shared by all modules, with rows of their
own, and what grouping, reordering and post-balancing make of these. Capacities are chosen for these very steps.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.phases.figures import figure
from benchmarks.rows import Row
from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import row_values
from data.packing.phases.item_tables import microbatch_items, plan_table
from data.packing.phases.phase_rows import PhaseRows
from data.packing.pipeline import BatchPipeline, training_pipeline
from data.packing.rows.row_planner import PlannerState, StepPlan
from data.report.dataset_statistics import flops_per_unit, modules_of_units
from mmjax.training.batches import row_order_request
from mmjax.training.config import TrainConfig
from sharding.balancing.capacities import least_padding_capacities, needed_capacity
from sharding.plans.plan import Plan

CAPACITIES = 4


def work_rows(config: TrainConfig, plan: Plan, steps: int) -> tuple[list[Row], Plan]:
    """Work computed over work needed in each variant; and the plan whose modules have rows of their own."""
    pipeline = training_pipeline(config.data, config.model, config.dataset("train"))
    order = row_order_request(dataclasses.replace(config, reordering="both"), plan, "cpu")
    assert order is not None
    row_order = order.make_row_order(config.model, pipeline.sample_index.sample_format)
    isf = training_pipeline(dataclasses.replace(config.data, grouping="isf"), config.model, config.dataset("train"))
    planned = {"": planned_steps(pipeline, steps), "ISF grouping": planned_steps(isf, steps)}
    planned |= {
        f"{name}{name and ' and '}reordering by both algorithms": [plan.reordered(row_order) for plan in plans]
        for name, plans in list(planned.items())
    }
    note = f"{steps} steps of {config.data.rows} rows, {plan.microbatches} microbatches"
    rows = []
    own_rows = plan
    for name, plans in planned.items():
        counted = Work(config, plan, pipeline, plans)
        if not name:
            own_rows = counted.plan_of_own_rows(CAPACITIES)
            whole, several = counted.ratio(None, is_dealt=False), counted.ratio(CAPACITIES, is_dealt=False)
            rows += [
                figure("work: rows shared by all modules", whole, None, note),
                figure(f"work: rows of its own as wholes, {CAPACITIES} capacities", several, None, "no item is moved"),
                figure("work: rows of its own, 1 capacity", counted.ratio(1, is_dealt=True), None, "items are dealt"),
            ]
        title = f"work: rows of its own, {CAPACITIES} capacities{name and ', '}{name}"
        rows.append(figure(title, counted.ratio(CAPACITIES, is_dealt=True), None, ""))
    return rows, own_rows


def planned_steps(pipeline: BatchPipeline, count: int) -> list[StepPlan]:
    """The first steps of a run."""
    return list(itertools.islice((plan for plan in pipeline.steps(PlannerState()) if plan.rows), count))


class Work:
    """The work of planned steps on a plan.

    Args:
        config: The run.
        plan: Its plan; units of one encoder or generator may get rows of their own, one for each replica.
        pipeline: The pipeline that planned the steps.
        steps: The steps.
    """

    def __init__(self, config: TrainConfig, plan: Plan, pipeline: BatchPipeline, steps: Sequence[StepPlan]) -> None:
        self._plan, self._steps, self._rows = plan, steps, config.data.rows // plan.microbatches
        sample_format = pipeline.sample_index.sample_format
        modules = modules_of_units(config.model, sample_format)
        flops = flops_per_unit(config.model, sample_format)
        self._flops = {modules[unit]: flops[unit] for unit in modules}
        self._tokens = config.data.tokens
        self._backbone = config.model.backbone.name
        values = row_values(config.model, global_batch_spec(config.data, config.model).arrays)
        self._values = {module: row_counts for module, row_counts in values.items() if module != self._backbone}
        self._units = {
            unit.modules[0]: unit for unit in plan.units if len(unit.modules) == 1 and unit.modules[0] in self._values
        }
        if shared := sorted(self._values.keys() - self._units.keys()):
            raise ValueError(f"{shared} share a unit; these benchmarks take plans with a unit for each module")
        generators = {generator.name for generator in config.model.generators}
        phases = {module: self._roomy(module, module in generators) for module in self._units}
        self._tables = {
            module: [
                items
                for step in steps
                for items in microbatch_items(
                    plan_table(step.rows, step.sizes, phase, plan.microbatches).items, plan.microbatches
                )
            ]
            for module, phase in phases.items()
        }

    def _roomy(self, module: str, is_generator: bool) -> PhaseRows:
        values = self._values[module]
        slots = values.count // values.per_slot
        return PhaseRows(
            module=module,
            unit=self._units[module].name,
            is_generator=is_generator,
            rows=1,
            slots=slots,
            capacities=(slots * self._rows,),
            values=values.field,
            values_per_slot=values.per_slot,
        )

    def needs(self, module: str, is_dealt: bool) -> list[int]:
        """Values that a row must hold in each microbatch: items dealt over the replicas, or rows as they are."""
        if is_dealt:
            return [needed_capacity(items[:, -1], self._units[module].parallelism.dp) for items in self._tables[module]]
        return [int(np.bincount(items[:, 1], items[:, -1]).max(initial=0)) for items in self._tables[module]]

    def needed(self) -> dict[str, int]:
        """Values of the samples of all steps, by module; tokens of the backbone."""
        tokens = sum(step.sizes[sample].tokens for step in self._steps for row in step.rows for sample in row)
        return {self._backbone: tokens} | {
            module: self._values[module].per_slot * sum(int(items[:, -1].sum()) for items in tables)
            for module, tables in self._tables.items()
        }

    def computed(self, capacities: int | None, *, is_dealt: bool) -> dict[str, int]:
        """Values that devices compute in all steps, padding included, by module.

        Args:
            capacities: The most capacities of each module; None for full rows.
            is_dealt: Whether items are dealt over rows for each replica, or stay in their rows.
        """
        full_rows = len(self._steps) * self._plan.microbatches * self._rows
        computed = {self._backbone: self._tokens * full_rows}
        for module in self._units:
            values = self._values[module]
            if capacities is None:
                computed[module] = values.count * full_rows
                continue
            needs = self.needs(module, is_dealt)
            chosen = np.array(least_padding_capacities(needs, capacities))
            rows = self._units[module].parallelism.dp if is_dealt else self._rows
            slots = sum(int(chosen[np.searchsorted(chosen, need)]) for need in needs if need)
            computed[module] = values.per_slot * rows * slots
        return computed

    def flops(self, values: Mapping[str, int]) -> float:
        """FLOPs of so many values of each module, without attention."""
        return sum(self._flops[module] * count for module, count in values.items())

    def ratio(self, capacities: int | None, *, is_dealt: bool) -> float:
        """FLOPs computed over FLOPs needed; takes the arguments of `computed`."""
        return self.flops(self.computed(capacities, is_dealt=is_dealt)) / self.flops(self.needed())

    def plan_of_own_rows(self, capacities: int) -> Plan:
        """The plan with a row for each replica in every unit of one encoder or generator."""
        changed = {}
        for module, unit in self._units.items():
            chosen = least_padding_capacities(self.needs(module, True), capacities)
            values = tuple(capacity * self._values[module].per_slot for capacity in chosen)
            changed[unit.name] = dataclasses.replace(unit, phase_rows=unit.parallelism.dp, capacities=values)
        units = tuple(changed.get(unit.name, unit) for unit in self._plan.units)
        return dataclasses.replace(self._plan, units=units)
