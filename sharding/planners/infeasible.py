"""Why no layout fits: which unit or layer lacks how many bytes, and the smallest cluster that would do."""

from collections.abc import Callable

import numpy as np

from sharding.costs.stages.sharded_weights import gathered_bytes
from sharding.costs.stages.stage_parameters import LayersOfStage, module_parallelism
from sharding.planners.chain_problem import ChainProblem
from sharding.planners.problem import PlanningProblem
from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_stages import least_peak_bytes
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.trained_parts import RequiredGradients
from sharding.plans.unit_layers import stage_layers

_TRIED = 4  # devices beyond the fewest by the tables, whose bytes hold for hardly any but not for all rows drawn
_MANY = 1_000_000  # devices: more than the modules of any batch have replicas for


def infeasible_error(problem: PlanningProblem, fits: Callable[[PlanningProblem], bool]) -> PlanError:
    """The error to raise where no layout of disjoint modules fits a problem's devices.

    Args:
        problem: The problem.
        fits: Whether a plan of the same problem on other devices fits when it is simulated.
    """
    memory, cluster = problem.cluster.usable_memory, problem.cluster.name
    enlarged = problem.with_devices(_MANY)  # replicas are considered up to the devices of a problem
    fewest = min_devices(enlarged)
    if fewest is None:
        needs = ((name, _min_bytes(enlarged, name)) for name in problem.graph.names)
        unit, need = max(needs, key=lambda pair: pair[1])
        return PlanError(
            f"unit {unit} needs {_format_bytes(need)} on each device however it is cut, {_format_bytes(need - memory)} "
            f"more than the {_format_bytes(memory)} of {cluster}; no number of these devices will do; use larger ones, "
            "or shorter rows"
        )
    total = sum(fewest.values())
    unit = max(fewest, key=lambda name: fewest[name])
    counts = ", ".join(f"{name} {count}" for name, count in fewest.items())
    enough = next((count for count in range(total, total + _TRIED) if fits(problem.with_devices(count))), None)
    size = f"{enough or f'about {total}'} devices" if enough != total else f"{total} devices ({counts})"
    would_do = f"The smallest cluster of {cluster} that would do for units of their own has {size}"
    if problem.devices < len(fewest):
        return PlanError(f"{problem.devices} devices are too few for {len(fewest)} units of their own. {would_do}")
    room = max(1, problem.devices - (total - fewest[unit]))
    need = _min_bytes(enlarged, unit, room)
    lack = f"it needs {_format_bytes(need)} on each, {_format_bytes(need - memory)} more than {cluster} has"
    if need <= memory or not np.isfinite(need):
        lack = f"it does not fit together with them: it needs {fewest[unit]}"
    left = f"on the {room} of {problem.devices} devices that the other units leave it at most"
    return PlanError(f"unit {unit}: {left}, {lack}. {would_do}")


def unfit_chain_error(chain: ChainProblem) -> PlanError:
    """The error to raise where no layout of one chain fits a problem's devices, whatever is recomputed."""
    problem, modules = chain.problem, " > ".join(chain.sizes.modules)
    memory, cluster = problem.cluster.usable_memory, problem.cluster.name
    fewest = min_chain_layout(chain)
    tried = [layout for layout in chain.sizes.layouts(problem.devices) if layout.chunks == 1]
    need = min((_peak_bytes(chain, layout) for layout in tried), default=np.inf)
    lack = (
        f"{modules} on {_format_devices(problem.devices)} needs {_format_bytes(need)} on each however it is cut and "
        f"recomputed, {_format_bytes(need - memory)} more than {cluster} has"
    )
    if not np.isfinite(need):
        lack = f"no layout of {modules} on {_format_devices(problem.devices)} divides the {problem.rows} rows"
    if fewest is None:
        return PlanError(f"{lack}. No number of these devices will do; use larger ones, or shorter rows")
    return PlanError(
        f"{lack}. The smallest cluster of {cluster} that would do has "
        f"{_format_devices(fewest.stage_devices * fewest.pp)} "
        f"(dp {fewest.dp}, tp {fewest.tp}, pp {fewest.pp})"
    )


def check_gathered_layers(problem: PlanningProblem, plan: Plan) -> None:
    """Refuses a fully sharded unit that gathers a layer larger than a device's memory: more replicas do not help it.

    Raises:
        PlanError: There is such a unit; the error names the largest of its layers.
    """
    required, memory = RequiredGradients(problem.graph, problem.trained_parts), problem.cluster.usable_memory
    for unit in plan.units:
        layers = [
            LayersOfStage(module, *layer_gradients, "none", module_parallelism(unit, module))
            for runs in stage_layers(unit, problem.graph)
            for module, first, last in runs
            for layer_gradients in required.of_layers(module, first, last)
        ]
        need, largest = max(((gathered_bytes(run, problem.costs), run) for run in layers), key=lambda pair: pair[0])
        if need > memory:
            raise PlanError(
                f"unit {unit.name}: whatever its fsdp, a device gathers {_format_bytes(need)} for a layer of "
                f"{largest.module} ({largest.layer.name}), {_format_bytes(need - memory)} more than the "
                f"{_format_bytes(memory)} of {problem.cluster.name}: the weights of two, and the gradients of one if "
                f"it trains; use more tensor ranks than tp {largest.ranks.tp}, or larger devices"
            )


def min_chain_layout(chain: ChainProblem) -> ChainLayout | None:
    """The layout of a chain that fits the fewest devices; None if no number of devices will do."""
    memory = chain.problem.cluster.usable_memory
    return next(
        (layout for layout in chain.sizes.layouts_by_devices() if _peak_bytes(chain, layout, memory) <= memory), None
    )


def _peak_bytes(chain: ChainProblem, layout: ChainLayout, enough: float = np.inf) -> float:
    """The fewest bytes that the fullest device needs; if weights and optimizer state exceed `enough`, only theirs."""
    state = chain.least_bytes(layout)
    return state if state > enough else least_peak_bytes(chain.layers(layout, 0), layout)


def min_devices(problem: PlanningProblem) -> dict[str, int] | None:
    """The fewest devices on which the modules fit, each on its own; None if no number of devices will do."""
    backbone = problem.graph.backbone.name
    table = problem.module_tables[backbone]
    generators = [problem.module_tables[name] for name in problem.graph.names if problem.is_generator(name)]
    depths = np.unique(np.concatenate([table.pp for table in generators])).tolist() if generators else [0]
    best: dict[str, int] | None = None
    for dp in map(int, problem.row_divisors):
        options = {name: _Options(problem, name, dp) for name in problem.graph.names}
        backbone_options = options[backbone]
        for deepest in depths:  # stages of the generator that has the most
            fits = backbone_options.max_downstream_stages >= deepest
            for index in np.flatnonzero(fits)[np.argsort(backbone_options.devices[fits], kind="stable")]:
                if best and backbone_options.devices[index] >= sum(best.values()):
                    break
                downstream = table.downstream_stages_of_sources(backbone_options.candidates[[index]], float(deepest))[0]
                counts = {
                    name: int(backbone_options.devices[index])
                    if name == backbone
                    else module_options.fewest_devices(downstream, deepest)
                    for name, module_options in options.items()
                }
                if all(counts.values()) and (best is None or sum(counts.values()) < sum(best.values())):
                    best = counts
    return best


class _Options:
    """Every candidate of a module on every number of replicas, at one dp of the backbone.

    Attributes:
        candidates: Numbers of the candidates.
        rows: Rows' worth of load of the slowest replica's microbatch.
        dp: Number of replicas.
        devices: Number of devices.
        microbatches: Microbatches of a step.
        max_downstream_stages: How many stages the memory allows downstream of the module.
    """

    def __init__(self, problem: PlanningProblem, name: str, dp: int) -> None:
        table = problem.module_tables[name]
        shares = problem.replica_shares(name, dp)
        options = np.arange(len(shares.replicas))
        self.candidates, option = (grid.ravel() for grid in np.meshgrid(np.arange(len(table.tp)), options))
        self.rows, self.dp = shares.rows[option], shares.replicas[option]
        self.devices = table.replica_devices[self.candidates] * self.dp
        self.microbatches = np.full(len(self.candidates), problem.rows // dp)
        self.max_downstream_stages = table.max_downstream_stages(
            self.candidates, self.rows, self.dp, problem.cluster.usable_memory, self.microbatches
        )
        self._stages, self._is_generator = table.pp[self.candidates], problem.is_generator(name)

    def fewest_devices(self, downstream_stages: float, deepest: int) -> int:
        """The fewest devices on which an encoder or generator fits; 0 if it never does.

        Args:
            downstream_stages: Stages downstream of an encoder.
            deepest: The most stages of a generator.
        """
        if self._is_generator:
            fits = (self.max_downstream_stages >= 0) & (self._stages <= deepest)
        else:
            fits = self.max_downstream_stages >= downstream_stages
        return int(self.devices[fits].min()) if fits.any() else 0


def _min_bytes(problem: PlanningProblem, name: str, max_devices: int | None = None) -> float:
    """The fewest bytes that a module needs on each device, over all candidates on at most `max_devices` devices."""
    table, least = problem.module_tables[name], np.inf
    is_last = bool(table.module.inputs) and not table.module.is_backbone
    for dp in map(int, problem.row_divisors):
        options = _Options(problem, name, dp)
        downstream = np.full(len(options.candidates), 0.0 if is_last else float(problem.has_generators))
        need = table.peak_bytes(options.candidates, options.rows, options.dp, downstream, options.microbatches)
        if max_devices is not None:
            need = need[options.devices <= max_devices]
        least = min(least, float(need.min(initial=np.inf)))
    return least


def _format_devices(count: int) -> str:
    return f"{count:,} device" if count == 1 else f"{count:,} devices"


def _format_bytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.3f} MB"
