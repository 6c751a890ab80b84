"""The engine: a model on a plan, ready to train. It joins stages, hops, the schedule and the optimizer."""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.architectures import ModelConfig
from mmjax.models.parameters import put
from mmjax.models.pieces import model_modules
from mmjax.training.settings import Settings, trained_parts
from mmjax.training.stages import piece_shapes, stage_function, stage_layouts
from mmjax.training.updates import adamw, optimizer_shardings, stage_stats, stage_update
from mmjax.weights.initial import FromSeed, InitialValues
from sharding.plan import Plan, PlanError, check_plan
from sharding.runtime.agreement import Agreement, Decision
from sharding.runtime.broker import make_hop
from sharding.runtime.executor import Channel, Executor, Share, Stage, State
from sharding.runtime.masters import StageMasters
from sharding.runtime.meshes import AXES, stage_meshes, unit_axes
from sharding.runtime.stage import Microbatches, Node, StageBody, StagePrograms
from sharding.schedule import build_evaluation, build_schedule
from sharding.specs import ModuleGraph, module_graph
from sharding.trees import Tree, get_leaf

HostBatch = Mapping[str, Mapping[str, np.ndarray]]


class Engine:
    """A model on a plan.

    Args:
        config: The model.
        plan: Where it lies; checked here.
        example: A global batch's arrays (values unused, shapes and types matter).
        settings: Optimizer and what trains.
        devices: Devices that the plan's numbers index; default all.

    Raises:
        PlanError: The plan cannot hold this model or batch.
    """

    def __init__(
        self,
        config: ModelConfig,
        plan: Plan,
        example: HostBatch,
        settings: Settings,
        devices: list[jax.Device] | None = None,
    ) -> None:
        self.config, self.plan, self.settings = config, plan, settings
        self.devices = devices or jax.devices()
        self.graph: ModuleGraph = module_graph(config)
        rows = next(iter(next(iter(example.values())).values())).shape[0]
        check_plan(plan, self.graph, rows, len(self.devices))
        self._check_processes()
        self.modules = model_modules(config)
        self.layouts = stage_layouts(plan, self.modules, self.graph)
        self.trained = self._trained_keys()
        self.shares = self._share_ends()
        self.meshes = stage_meshes(plan, self.devices)
        dtype = jnp.dtype(config.dtype)
        axes = {unit.name: unit_axes(unit, self.meshes[unit.name, 0]) for unit in plan.units}
        self.axes = {node: axes[node[0]] for node in self.layouts}
        self._check_positions(example)
        self.masters = {
            node: StageMasters(piece_shapes(layout), self.meshes[node], self.axes[node], dtype)
            for node, layout in self.layouts.items()
        }
        self.transformation = adamw(settings.optimizer, settings.steps)
        self.executor = self._executor(example)

    # ------------------------------------------------------------------ what lies where

    def _check_processes(self) -> None:
        """Every process takes part in the norm and in checkpoints, so none may be without a device of the plan."""
        idle = {device.process_index for device in self.devices} - {d.process_index for d in self.allocated}
        if idle:
            raise PlanError(
                f"the plan uses no device of process {', '.join(map(str, sorted(idle)))}; "
                "start fewer processes, or give each a device"
            )

    def _check_positions(self, example: HostBatch) -> None:
        """Tensor ranks that divide positions must do so evenly."""
        for module in self.modules:
            unit = self.plan.unit_of(module.name)
            if self.axes[unit.name, 0].sequence and any(piece.by_position for piece in module.pieces):
                positions = example[module.name]["segments"].shape[1]
                if positions % unit.tp:
                    raise PlanError(
                        f"unit {unit.name}: its {unit.tp} tensor ranks do not divide the {positions} positions of a "
                        f'row of {module.name}, as collectives "{unit.collectives}" has them; use a multiple of '
                        f'{unit.tp} in the data configuration, or "reduce"'
                    )

    def _trained_keys(self) -> dict[Node, frozenset[str]]:
        parts = trained_parts(self.config, self.settings.trainable)
        return {
            node: frozenset(run.key for run in layout.runs if run.piece.owner in parts)
            for node, layout in self.layouts.items()
        }

    def _share_ends(self) -> list[tuple[Node, Node, tuple[str, str], tuple[str, str]]]:
        """(owner, borrower, (key, path) there, (key, path) here) of parameters borrowed from another stage."""
        ends = []
        for node, layout in self.layouts.items():
            for run in layout.runs:
                for path, piece, there in run.piece.borrows:
                    owner = self._stage_with(f"{run.module.name}/{piece}")
                    if owner != node:
                        ends.append((owner, node, (f"{run.module.name}/{piece}", there), (run.key, path)))
        return ends

    def _stage_with(self, key: str) -> Node:
        return next(node for node, layout in self.layouts.items() if any(run.key == key for run in layout.runs))

    @property
    def allocated(self) -> list[jax.Device]:
        """The devices of the plan, each once."""
        return [self.devices[d] for d in sorted({device for unit in self.plan.units for device in unit.devices})]

    def losses(self, decision: Decision) -> dict[str, float]:
        """A step's losses by name, of all stages together; waits for the step."""
        found = dict.fromkeys((name for _, name in self.executor.agreement.order), 0.0)
        for (_, name), loss in zip(self.executor.agreement.order, np.asarray(decision.losses), strict=True):
            found[name] += float(loss)
        return found

    # ------------------------------------------------------------------ programs

    def _executor(self, example: HostBatch) -> Executor:
        trains = frozenset(node for node, keys in self.trained.items() if keys)
        pairs = tuple(dict.fromkeys((owner, borrower) for owner, borrower, _, _ in self.shares))
        training = build_schedule(self.plan, self.graph, trains, pairs)
        evaluation = build_evaluation(self.plan, self.graph, pairs)
        mine = frozenset(i for i, device in enumerate(self.devices) if device.process_index == jax.process_index())
        backward = {part.node for op in training.ops for part in op.parts if part.kind == "backward"}
        ends = self._channel_ends()
        stages: dict[Node, Stage] = {}
        self.channel_shapes: dict[str, jax.ShapeDtypeStruct] = {}
        for node, layout in self.layouts.items():
            wanted = frozenset(name for name in layout.inputs if ends[name][0] in backward)
            inputs = {name: self.channel_shapes[name] for name in layout.inputs}
            programs = StagePrograms(
                self._body(node),
                self.meshes[node],
                self.axes[node],
                inputs,
                self._abstract_batch(node, example),
                wanted,
                node in backward,
            )
            self.channel_shapes |= programs.outputs
            stages[node] = self._stage(node, programs)
        losses = {node: stage.programs.losses for node, stage in stages.items()}
        agreement = Agreement(self.allocated, self.meshes, losses, self.settings.optimizer.max_norm or None)
        channels = tuple(self._channel(name, pair, stages) for name, pair in ends.items())
        shares = tuple(self._share(*each) for each in self.shares)
        return Executor(
            stages, channels, shares, agreement, training.restricted_to(mine), evaluation.restricted_to(mine)
        )

    def _body(self, node: Node) -> StageBody:
        layout, masters = self.layouts[node], self.masters[node]
        return StageBody(
            node,
            stage_function(layout),
            masters.specs,
            masters.shapes,
            self.trained[node],
            layout.reads(),
            layout.inputs,
            layout.outputs,
            layout.by_position,
        )

    def _stage(self, node: Node, programs: StagePrograms) -> Stage:
        masters, trained, mesh = self.masters[node], self.trained[node], self.meshes[node]
        stats = jax.jit(stage_stats, out_shardings=NamedSharding(mesh, P()))
        if not trained:
            return Stage(programs, masters.gather, None, stats, None)
        owned = {key: masters.shardings[key] for key in sorted(trained)}
        inner = jax.jit(
            stage_update(self.transformation),
            out_shardings=(owned, self.optimizer_shardings(node)),
            donate_argnums=(0, 1),
        )

        def update(all_masters: Tree, states: Tree, gradients: Tree, decision: Decision) -> tuple[Tree, Tree]:
            moving = {key: all_masters[key] for key in trained}
            new, states = inner(moving, states, gradients, decision)
            return {**all_masters, **new}, states

        return Stage(programs, masters.gather, masters.reducer(trained), stats, update)

    def optimizer_shardings(self, node: Node) -> Tree:
        """Of a stage's optimizer state: `{key: {layer: ...}}`."""
        masters, scalar = self.masters[node], NamedSharding(self.meshes[node], P())
        return {
            key: {
                layer: optimizer_shardings(self.transformation, masters.pieces[key].shapes, shardings, scalar)
                for layer, shardings in masters.shardings[key].items()
            }
            for key in sorted(self.trained[node])
        }

    def _channel_ends(self) -> dict[str, tuple[Node, Node]]:
        sources = {name: node for node, layout in self.layouts.items() for name in layout.outputs}
        return {name: (sources[name], node) for node, layout in self.layouts.items() for name in layout.inputs}

    def _channel(self, name: str, ends: tuple[Node, Node], stages: Mapping[Node, Stage]) -> Channel:
        there, here = (stages[node].programs.channels[name] for node in ends)
        shape = self.channel_shapes[name]
        hop = functools.partial(make_hop, shape=shape.shape, dtype=shape.dtype, transport=self.settings.transport)
        return Channel(name, *ends, hop(there, here), hop(here, there))

    def _share(self, owner: Node, borrower: Node, owned: tuple[str, str], borrowed: tuple[str, str]) -> Share:
        lent = get_leaf(self.masters[owner].shapes[owned[0]], owned[1])
        spec = {
            node: NamedSharding(self.meshes[node], get_leaf(self.masters[node].specs[key], path))
            for node, (key, path) in ((owner, owned), (borrower, borrowed))
        }
        (layer,) = self.masters[owner].shardings[owned[0]]
        master = get_leaf(self.masters[owner].shardings[owned[0]][layer], owned[1])
        forth = make_hop(spec[owner], spec[borrower], lent.shape, lent.dtype, self.settings.transport)
        back = make_hop(spec[borrower], master, lent.shape, np.dtype(np.float32), self.settings.transport)
        return Share(owner, borrower, owned, borrowed, layer, forth, back)

    # ------------------------------------------------------------------ batches

    def _microbatched(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(self.plan.microbatches, -1, *array.shape[1:])

    def _abstract_batch(self, node: Node, example: HostBatch) -> Microbatches:
        rows = {
            module: {
                name: jax.eval_shape(lambda a: a, self._microbatched(np.asarray(example[module][name])))
                for name in names
                if name != "seed_and_step"
            }
            for module, names in self.layouts[node].reads().items()
        }
        return Microbatches(rows, jax.ShapeDtypeStruct((2,), jnp.int32))

    def rows_needed(self, count: int) -> list[int]:
        """Of a global batch of `count` rows, those that a stage of this process reads."""
        needed = np.zeros((self.plan.microbatches, count // self.plan.microbatches), bool)
        for node, stage in self.executor.stages.items():
            if stage.local:
                by_rows = NamedSharding(self.meshes[node], P(None, AXES.data))
                for index in by_rows.addressable_devices_indices_map(needed.shape).values():
                    needed[index] = True
        return np.flatnonzero(needed).tolist()

    def place(self, batch: HostBatch, step: int) -> dict[Node, Microbatches]:
        """A global batch's arrays on the stages of this process that read them.

        Args:
            batch: `{module: {name: [n, ...]}}`; row i belongs to microbatch i // (n / m).
            step: Number of the step, which keys its randomness.
        """
        placed = {}
        for node, stage in self.executor.stages.items():
            if stage.local:
                mesh = self.meshes[node]
                by_rows = NamedSharding(mesh, P(None, AXES.data))
                rows = {
                    module: {name: put(self._microbatched(batch[module][name]), by_rows) for name in arrays}
                    for module, arrays in stage.programs.batch_shapes.rows.items()
                }
                key = put(np.array([self.settings.seed, step], np.int32), NamedSharding(mesh, P()))
                placed[node] = Microbatches(rows, key)
        return placed

    # ------------------------------------------------------------------ state

    def initial_state(self, values: InitialValues | None = None) -> State:
        """Masters as given (else by the seed), the same on every plan, and zero moments, made where they lie."""
        values = values or FromSeed(self.settings.seed)
        local = [node for node in self.layouts if self.executor.stages[node].local]
        return self.state_from({node: self._initial_masters(node, values) for node in local})

    def state_from(self, masters: dict[Node, Tree]) -> State:
        """A state with fresh moments around given masters."""
        return State(
            masters,
            {node: self._initial_optimizer(node, masters[node]) for node in masters if self.trained[node]},
            self.executor.agreement.start(),
        )

    def _initial_masters(self, node: Node, values: InitialValues) -> Tree:
        shardings = self.masters[node].shardings
        return {
            run.key: {
                name: values.layer(run.module, run.piece, layer, shardings[run.key][name])
                for name, layer in zip(run.layers, range(run.first, run.last), strict=True)
            }
            for run in self.layouts[node].runs
        }

    def _initial_optimizer(self, node: Node, masters: Tree) -> Tree:
        return self._optimizer_starts[node]({key: masters[key] for key in sorted(self.trained[node])})

    @functools.cached_property
    def _optimizer_starts(self) -> dict[Node, Callable[[Tree], Tree]]:
        """Programs from the trained masters of a stage to its moments, compiled once however often a state is made."""

        def init(masters: Tree) -> Tree:
            return {
                key: {layer: self.transformation.init(tree) for layer, tree in layers.items()}
                for key, layers in masters.items()
            }

        trained = [node for node in self.layouts if self.trained[node]]
        return {node: jax.jit(init, out_shardings=self.optimizer_shardings(node)) for node in trained}
