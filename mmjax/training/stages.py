"""From modules and a plan to what each stage computes: runs of pieces, chained by named channels."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from mmjax.models.interface import Leaving, Passing, balance_name
from mmjax.models.lora import joined
from mmjax.models.matmuls import MATMUL, all_positions, own_positions
from mmjax.models.module import Module, Piece
from mmjax.models.parameters import Definition, define, layer_name
from sharding.axes import Axes
from sharding.plan import Plan, stage_layers
from sharding.runtime.masters import PieceShapes
from sharding.runtime.stage import Node
from sharding.specs import ModuleGraph
from sharding.stage_graph import stage_graph
from sharding.trees import Tree, get_leaf, set_leaf


@dataclasses.dataclass(frozen=True)
class PieceRun:
    """The layers of one piece that lie on one stage."""

    module: Module
    piece: Piece
    first: int
    last: int

    @property
    def key(self) -> str:
        """Key of its parameters in the stage's."""
        return f"{self.module.name}/{self.piece.name}"

    @property
    def before(self) -> Piece | None:
        """The piece that makes the activations it takes; None where it takes other modules' outputs."""
        if self.first:
            return self.piece
        number = self.module.computed.index(self.piece)
        return self.module.computed[number - 1] if number else None

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of its layers."""
        return tuple(layer_name(layer) for layer in range(self.first, self.last))


@dataclasses.dataclass(frozen=True)
class StageLayout:
    """What lies on a stage, and the channels that enter and leave it.

    A channel `a>b` carries module a's output to module b; `a#3` carries a's activations into its layer 3.
    """

    node: Node
    runs: tuple[PieceRun, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    recompute: str

    @property
    def by_position(self) -> frozenset[str]:
        """The channels between layers of a module whose positions the tensor ranks divide where the plan says so."""
        stacks = {
            run.module.name: run.piece.by_position for run in self.runs if run.piece.layers and not run.piece.adapts
        }
        inside = {name: name.partition("#") for name in (*self.inputs, *self.outputs)}
        return frozenset(name for name, (module, cut, _) in inside.items() if cut and stacks[module])

    def reads(self) -> dict[str, tuple[str, ...]]:
        """Names of the batch arrays its pieces read, by module."""
        names: dict[str, dict[str, None]] = {}
        for run in self.runs:
            of = names.setdefault(run.module.name, {})
            of.update(dict.fromkeys(define(run.piece).reads))
        return {module: tuple(of) for module, of in names.items() if of}


def stage_layouts(plan: Plan, modules: tuple[Module, ...], graph: ModuleGraph) -> dict[Node, StageLayout]:
    """Every stage's layout, each after those that feed it."""
    by_name = {module.name: module for module in modules}
    units = {unit.name: unit for unit in plan.units}
    spans = {name: stage_layers(unit, graph) for name, unit in units.items()}
    return {
        (name, stage): _layout((name, stage), spans[name][stage], by_name, graph, units[name].recompute[stage])
        for name, stage in stage_graph(plan, graph).nodes
    }


def _layout(node: Node, spans: Any, modules: Mapping[str, Module], graph: ModuleGraph, recompute: str) -> StageLayout:
    runs: list[PieceRun] = []
    inputs: list[str] = []
    outputs: list[str] = []
    here = {(name, first == 0, last == graph[name].layers) for name, first, last in spans}
    for name, first, last in spans:
        whole = graph[name].layers
        runs += _piece_runs(modules[name], first, last, whole)
        if first:
            inputs.append(f"{name}#{first}")
        else:
            inputs += [f"{source}>{name}" for source in graph[name].inputs if not _ends_here(source, here)]
        if last < whole:
            outputs.append(f"{name}#{last}")
        else:
            outputs += [
                f"{name}>{target}"
                for source, target in graph.edges
                if source == name and not _starts_here(target, here)
            ]
    return StageLayout(node, tuple(runs), tuple(inputs), tuple(outputs), recompute)


def _ends_here(module: str, here: set[tuple[str, bool, bool]]) -> bool:
    return any(name == module and ends for name, _, ends in here)


def _starts_here(module: str, here: set[tuple[str, bool, bool]]) -> bool:
    return any(name == module and starts for name, starts, _ in here)


def _piece_runs(module: Module, first: int, last: int, whole: int) -> list[PieceRun]:
    """Pieces before the stack go with its first layer, pieces after it with its last."""
    runs = []
    stacked = next((number for number, piece in enumerate(module.pieces) if piece.layers), len(module.pieces))
    for number, piece in enumerate(module.pieces):
        if piece.layers:
            runs.append(PieceRun(module, piece, first, last))
        elif (number < stacked and first == 0) or (number > stacked and last == whole):
            runs.append(PieceRun(module, piece, 0, 1))
    return runs


def piece_shapes(layout: StageLayout) -> dict[str, PieceShapes]:
    """Shapes of the stage's parameters by key; a borrowed parameter whose owner lies on the stage is the owner's."""
    shapes = {}
    for run in layout.runs:
        definition = define(run.piece)
        away = [path for path, owner, _ in run.piece.borrows if not _on_stage(layout, run.module, owner)]
        shapes[run.key] = PieceShapes(
            run.layers,
            bool(run.piece.layers),
            definition.shapes,
            definition.splits,
            {path: definition.borrowed_shapes[path] for path in away},
            {path: definition.borrowed_splits[path] for path in away},
        )
    return shapes


def _on_stage(layout: StageLayout, module: Module, piece: str) -> bool:
    return any(run.module.name == module.name and run.piece.name == piece for run in layout.runs)


_KEEP_MATMULS = jax.checkpoint_policies.save_only_these_names(MATMUL)

RECOMPUTATION: dict[str, Callable[[Callable], Callable]] = {
    "none": lambda function: function,
    # The results of matmuls and convolutions with weights are kept; attention is computed again (arXiv 2205.05198).
    "selective": lambda function: jax.checkpoint(function, policy=_KEEP_MATMULS),
    "full": lambda function: jax.checkpoint(function, policy=jax.checkpoint_policies.nothing_saveable),
}


def stage_function(layout: StageLayout) -> Callable:
    """The stage as a plain function of one device's shards (`StageBody.apply`)."""

    def apply(
        parameters: Tree, inputs: dict[str, jax.Array], batch: Mapping[str, dict[str, jax.Array]], axes: Axes
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array], dict[str, jax.Array]]:
        channels, losses, judged = dict(inputs), {}, {}
        for run in layout.runs:
            if run.piece.adapts:
                continue
            x = _as_taken(run, _entering(run, channels), axes)
            own = axes if run.piece.by_position else axes.undivided
            x = _run_piece(layout, run, parameters, x, batch.get(run.module.name, {}), own)
            if isinstance(x, Passing):
                losses[balance_name(run.module.name)] = x.loss
                x = x.x
            if isinstance(x, Leaving):
                channels |= {f"{run.module.name}>{target}": array for target, array in x.outputs.items()}
                judged |= {f"{run.module.name}/{name}": array for name, array in x.judged.items()}
                losses |= {} if x.loss is None else {run.module.name: x.loss}
            else:
                channels[f"{run.module.name}#{run.last if run.piece.layers else 0}"] = x
        outputs = {name: channels[name] for name in layout.outputs}
        return outputs, losses, judged

    return apply


def _entering(run: PieceRun, channels: dict[str, jax.Array]) -> Any:
    """What a piece takes: other modules' outputs by name for a module's first piece, else the activations."""
    if run.piece is run.module.pieces[0]:
        return {name: channels[f"{name}>{run.module.name}"] for name in run.module.inputs}
    inside = [name for name in channels if name.startswith(f"{run.module.name}#")]
    return channels.pop(inside[-1])


def _as_taken(run: PieceRun, x: Any, axes: Axes) -> Any:
    """Activations with all positions or this rank's, as the piece takes them, given as the piece before left them."""
    before = run.before
    if before is None or before.by_position == run.piece.by_position:
        return x
    return own_positions(x, axes) if run.piece.by_position else all_positions(x, axes)


def _run_piece(
    layout: StageLayout,
    run: PieceRun,
    parameters: Tree,
    x: Any,
    batch: dict[str, jax.Array],
    axes: Axes,
) -> Any:
    definition: Definition = define(run.piece)
    own = joined(parameters[run.key], parameters.get(f"{run.module.name}/{run.module.adapters(run.piece.name)}", {}))
    for path, owner, there in run.piece.borrows:
        if _on_stage(layout, run.module, owner):
            own = set_leaf(own, path, get_leaf(parameters[f"{run.module.name}/{owner}"], there))
    shared = run.piece.prepare(batch) if run.piece.prepare else batch
    layer = RECOMPUTATION[layout.recompute](lambda weights, x, shared: definition.call(weights, x, shared, axes))
    if not run.piece.layers:
        return layer(own, x, shared)

    def step(x: jax.Array, weights: Tree) -> tuple[jax.Array, jax.Array | None]:
        left = layer(weights, x, shared)
        return (left.x, left.loss) if isinstance(left, Passing) else (left, None)

    x, losses = jax.lax.scan(step, x, own)
    return x if losses is None else Passing(x, jnp.sum(losses))


def by_module(trees: Mapping[Node, Tree]) -> Tree:
    """Trees by stage, `{node: {"module/piece": {layer: ...}}}`, as `{module: {piece: {layer: ...}}}`."""
    merged: Tree = {}
    for tree in trees.values():
        for key, layers in tree.items():
            module, _, piece = key.partition("/")
            merged.setdefault(module, {}).setdefault(piece, {}).update(layers)
    return merged


def by_stage(tree: Tree, layouts: Mapping[Node, StageLayout]) -> dict[Node, Tree]:
    """The inverse of `by_module` for a plan's stages; keys that the tree lacks are left out."""
    return {
        node: {
            run.key: {layer: tree[run.module.name][run.piece.name][layer] for layer in run.layers}
            for run in layout.runs
            if run.piece.name in tree.get(run.module.name, {})
        }
        for node, layout in layouts.items()
    }
