"""The best layouts with one data-parallel size, tensor-parallel size and number of chunks of the backbone.

Every module's candidates are pruned against the best layout so far and reduced to the Pareto front (devices, slowest
stage, fill latency, stages that the memory allows downstream); then the fronts are combined pairwise.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from sharding.planners.layouts.disjoint_layout import DisjointLayout, ModuleChoice
from sharding.planners.problem import PlanningProblem
from sharding.planners.tables.module_table import ModuleTable
from sharding.planners.tables.pareto_front import ParetoFront

# Multiples of the lower bound that are tried as upper limit of a step's seconds; a tight limit prunes most candidates.
_TARGETS = (1.02, 1.06, 1.2, 2.0, 10.0, np.inf)
TOLERANCE = 1e-9
"""Share by which seconds may differ by rounding."""
_NEARLY = 2e-3  # share by which a similar layout may take longer than one on fewer devices
MAX_SIMILAR = 64
"""How many layouts of one (dp, tp, chunks) of the backbone are compared."""


def most_extra_in_flight(
    table: ModuleTable, candidates: Int[np.ndarray, " n"], generators: int, extra: int
) -> Int[np.ndarray, " n"]:
    """How many microbatches the backbone's ranks hold beyond the schedule's limits if `extra` more may be in flight.

    In 1F1B a stage of h from it to the end never holds more than 2h - 1, which is h - 1 more than its limit. With
    chunks, a microbatch counts in each.
    """
    chunks, pp = table.chunks[candidates], table.pp[candidates]
    return np.where(chunks > 1, extra * chunks, np.minimum(extra, pp + generators - 1))


class BackboneSearch:
    """Searches all layouts with one data-parallel size, tensor-parallel size and number of chunks of the backbone.

    `known` has candidates that other searches need too: the candidates of encoders and generators depend on `dp` alone.
    """

    def __init__(
        self,
        problem: PlanningProblem,
        dp: int,
        tp: int,
        chunks: int,
        max_devices: Mapping[str, int],
        extra: int,
        known: dict[tuple, ParetoFront],
    ) -> None:
        self._problem, self._dp, self._extra = problem, dp, extra
        self._microbatches = problem.rows // dp
        device_seconds = 0.0
        self._candidates: dict[str, ParetoFront] = {}
        for name in problem.graph.names:
            table, sizes = problem.module_tables[name], problem.module_tables[name].tensor_sizes
            allowed = np.ones(len(table.tp), bool)
            if table.module.is_backbone:
                sizes, allowed = (tp,), (table.tp == tp) & (table.chunks == chunks)
            device_seconds += min(problem.least_device_seconds(name, dp, size) for size in sizes)
            key = (name, *((dp, tp, chunks) if table.module.is_backbone else (dp,)))
            if key not in known:
                known[key] = self._all_candidates(table, allowed, max_devices.get(name, problem.devices))
            self._candidates[name] = known[key]
        self._balanced_seconds = device_seconds / problem.devices  # of every stage, if all devices worked alike

    def _all_candidates(self, table: ModuleTable, allowed: Bool[np.ndarray, " o"], max_devices: int) -> ParetoFront:
        """Candidates of a module on every number of replicas and at most `max_devices`, whether they fit or not."""
        candidates = np.flatnonzero(allowed)[:, None]
        shares = self._problem.replica_shares(table.module.name, self._dp)
        devices = table.replica_devices[candidates] * shares.replicas
        row, option = np.nonzero(devices <= max_devices)
        candidate = candidates[row, 0]
        stage, fill = table.stage_seconds(candidate, shares.rows[option])
        is_generator = self._problem.is_generator(table.module.name)
        return ParetoFront(
            devices=devices[row, option],
            stage=shares.active * stage,
            fill=shares.active * fill,
            max_downstream_stages=np.zeros(len(candidate)),
            downstream_stages=is_generator * table.pp[candidate].astype(float),
            choices=np.stack([candidate, option], axis=1)[:, None],
        )

    def best_layout(self, bound: float, target: float) -> DisjointLayout | None:
        """The best layout, if it takes at most `target` seconds; `bound` is what none can beat."""
        for factor in _TARGETS:
            layout = self._best_within(min(target, bound * factor))
            if layout or bound * factor >= target:
                return layout
        return None

    def layouts_within(self, target: float) -> list[DisjointLayout]:
        """The best layouts of at most `target` seconds, at most `MAX_SIMILAR`."""
        total = self._all_within(target)
        if total is None:
            return []
        seconds = self._step_seconds(total)
        order = np.lexsort([seconds, total.devices])
        shortest = np.minimum.accumulate(seconds[order])  # on as many or fewer devices
        front = order[seconds[order] <= shortest * (1 + _NEARLY)]
        front = front[np.argsort(total.devices[front] * seconds[front], kind="stable")[:MAX_SIMILAR]]
        return [self._layout(total, int(index)) for index in front[np.argsort(seconds[front], kind="stable")]]

    def _best_within(self, target: float) -> DisjointLayout | None:
        """Returns the best layout of at most `target` seconds; of equal layouts the one on the fewest devices."""
        total = self._all_within(target)
        if total is None:
            return None
        seconds = self._step_seconds(total)
        shortest = np.flatnonzero(seconds <= seconds.min() * (1 + TOLERANCE))
        return self._layout(total, int(shortest[total.devices[shortest].argmin()]))

    def _layout(self, total: ParetoFront, index: int) -> DisjointLayout:
        """Returns the layout of one of the combinations of candidates."""
        choices = {
            name: self._choice(name, *chosen)
            for name, chosen in zip(self._names, total.choices[index].tolist(), strict=True)
        }
        return DisjointLayout(
            float(self._step_seconds(total)[index]),
            self._microbatches,
            {name: choices[name] for name in self._candidates},
        )

    @property
    def _names(self) -> tuple[str, ...]:
        """The modules in the order in which they are combined: backbone, generators, what feeds the backbone."""
        backbone = self._problem.graph.backbone.name
        others = (name for name in self._candidates if name != backbone)
        return (backbone, *sorted(others, key=lambda name: not self._problem.is_generator(name)))

    def _all_within(self, target: float) -> ParetoFront | None:
        """The combinations of at most `target` seconds that could be best in devices and seconds; None without one."""
        fronts = self._promising(target)
        if fronts is None:
            return None
        backbone, *others = self._names
        total = fronts.pop(backbone)
        total = total._replace(downstream_stages=self._downstream_stages(total, 0.0))
        other_devices = sum(int(front.devices.min()) for front in fronts.values())
        other_fill = sum(float(front.fill.min()) for front in fronts.values())
        for name in others:
            front = fronts[name]
            other_devices -= int(front.devices.min())
            other_fill -= float(front.fill.min())
            total = self._combine(total, name, front, self._problem.devices - other_devices, target - other_fill)
            if not len(total.devices):
                return None
        return total

    def _step_seconds(self, front: ParetoFront) -> Float[np.ndarray, " n"]:
        return front.fill + (self._microbatches - 1) * front.stage

    def _promising(self, target: float) -> dict[str, ParetoFront] | None:
        """By module, the Pareto front of candidates that fit and could occur in a layout of `target` seconds."""
        fronts = {
            name: front._replace(stage=np.maximum(front.stage, self._balanced_seconds))
            for name, front in self._candidates.items()
        }
        for step in (self._drop_slow, self._drop_large, self._drop_out_of_memory, self._drop_slow, self._drop_large):
            if any(not len(front.devices) for front in fronts.values()):
                return None
            fronts = step(fronts, target)
        if any(not len(front.devices) for front in fronts.values()):
            return None
        return {name: front.pareto_optimal() for name, front in self._with_needed_memory(fronts).items()}

    def _with_needed_memory(self, fronts: dict[str, ParetoFront]) -> dict[str, ParetoFront]:
        """Clips the memory for downstream stages at the most stages that any candidates put downstream."""
        backbone = self._problem.graph.backbone.name
        deepest = max(float(front.downstream_stages.max()) for front in fronts.values())
        most = float(self._downstream_stages(fronts[backbone], deepest).max())
        return {
            name: front._replace(
                max_downstream_stages=np.minimum(front.max_downstream_stages, deepest if name == backbone else most)
            )
            for name, front in fronts.items()
        }

    def _downstream_stages(
        self, backbone: ParetoFront, generator_stages: Float[np.ndarray, " n"] | float
    ) -> Float[np.ndarray, " n"]:
        """Stages downstream of the modules that feed the backbone, for candidates of the backbone."""
        table = self._problem.module_tables[self._problem.graph.backbone.name]
        return table.downstream_stages_of_sources(backbone.choices[:, 0, 0], generator_stages)

    def _drop_slow(self, fronts: dict[str, ParetoFront], target: float) -> dict[str, ParetoFront]:
        """Drops candidates with which a step takes more than `target` seconds whatever the other modules do."""
        least_fill = {name: float(front.fill.min()) for name, front in fronts.items()}
        slowest = max(float(front.stage.min()) for front in fronts.values())
        slack = (target - sum(least_fill.values())) * (1 + TOLERANCE)
        selected = {}
        for name, front in fronts.items():
            steady = (self._microbatches - 1) * np.maximum(front.stage, slowest)
            selected[name] = front.select(front.fill - least_fill[name] + steady <= slack)
        return selected

    def _drop_large(self, fronts: dict[str, ParetoFront], target: float) -> dict[str, ParetoFront]:
        """Drops candidates that leave the other modules too few devices."""
        least = {name: int(front.devices.min()) for name, front in fronts.items()}
        spare = self._problem.devices - sum(least.values())
        return {name: front.select(front.devices - least[name] <= spare) for name, front in fronts.items()}

    def _drop_out_of_memory(self, fronts: dict[str, ParetoFront], target: float) -> dict[str, ParetoFront]:
        """Drops candidates that never fit the memory."""
        return {name: self._fit(name, front) for name, front in fronts.items()}

    def _fit(self, name: str, front: ParetoFront) -> ParetoFront:
        table, generators = self._problem.module_tables[name], int(self._problem.has_generators)
        candidates, options = front.choices[:, 0].T
        shares = self._problem.replica_shares(name, self._dp)
        memory, microbatches = self._problem.cluster.usable_memory, np.full(len(candidates), self._microbatches)
        most = table.max_downstream_stages(
            candidates,
            shares.rows[options],
            shares.replicas[options],
            memory,
            microbatches,
            self._more(table, candidates),
        )
        if table.module.is_backbone:  # generators have one stage at least
            return front._replace(max_downstream_stages=most).select(most >= generators)
        if table.module.inputs:  # nothing is downstream of a generator
            return front._replace(max_downstream_stages=np.full(len(most), np.inf)).select(most >= 0)
        return front._replace(max_downstream_stages=most).select(most >= 1 + generators)

    def _more(self, table: ModuleTable, candidates: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Microbatches beyond the schedule's limits for which candidates have to leave memory.

        The backbone's number is for generators of one stage; more stages allow more (`extra_microbatches`).
        """
        if table.module.is_backbone:
            return most_extra_in_flight(table, candidates, int(self._problem.has_generators), self._extra)
        return np.full(len(candidates), 0 if table.module.inputs else self._extra)

    def _combine(self, total: ParetoFront, name: str, front: ParetoFront, devices: int, target: float) -> ParetoFront:
        """All pairs of a combination and a candidate of a module, as far as devices, seconds and memory allow."""
        count = total.devices[:, None] + front.devices
        stage = np.maximum(total.stage[:, None], front.stage)
        fill = total.fill[:, None] + front.fill
        is_generator = self._problem.is_generator(name)
        if is_generator:
            in_memory = total.max_downstream_stages[:, None] >= front.downstream_stages
        else:
            in_memory = front.max_downstream_stages >= total.downstream_stages[:, None]
        fits = (count <= devices) & in_memory
        fits &= fill + (self._microbatches - 1) * stage <= target * (1 + TOLERANCE)
        left, right = np.nonzero(fits)
        downstream_stages = total.downstream_stages[left]
        if is_generator:
            through = self._downstream_stages(total.select(left), front.downstream_stages[right])
            downstream_stages = np.maximum(downstream_stages, through)
        choices = np.concatenate([total.choices[left], front.choices[right]], axis=1)
        return ParetoFront(
            devices=count[left, right],
            stage=stage[left, right],
            fill=fill[left, right],
            max_downstream_stages=total.max_downstream_stages[left],
            downstream_stages=downstream_stages,
            choices=choices,
        )

    def _choice(self, name: str, candidate: int, option: int) -> ModuleChoice:
        table, shares = self._problem.module_tables[name], self._problem.replica_shares(name, self._dp)
        dp = int(shares.replicas[option])
        devices = int(table.replica_devices[candidate]) * dp
        dealt = self._problem.sharing[name].deals_items(self._dp, dp)
        return ModuleChoice(candidate, float(shares.rows[option]), dp, devices, dealt)
