"""The layers that a plan places on each stage, and the named channels between stages.

The placement is made from them, and checkpoints turn trees by stage into trees by module with them.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from mmjax.models.structure.module import Module, Piece
from mmjax.models.structure.parameters import layer_name, piece_definition
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.plans.text.recompute_text import policy_runs
from sharding.plans.unit_layers import LayerRun
from sharding.runtime.stages.master_weights import LayerStackShapes
from sharding.specs.layers.layer import RecomputePolicy
from sharding.specs.modules import ModuleGraph
from sharding.trees import Tree


@dataclasses.dataclass(frozen=True)
class PieceRun:
    """Consecutive layers of one piece on one stage that have one recomputation policy: `first` to `last - 1`.

    Each run has a stack of parameters of its own. If several computed with slices of one, the slices would be saved
    with the activations (`sharding.runtime.stages.residuals`).

    Attributes:
        module: The module.
        piece: The piece.
        first: Its first layer, counted within the piece.
        last: The layer after its last layer, counted within the piece.
        recompute: Recomputation policy of its layers, a key of `RECOMPUTATION_POLICIES`.
        is_continued: Whether the stage has a run of the piece's layers before these.
    """

    module: Module
    piece: Piece
    first: int
    last: int
    _: dataclasses.KW_ONLY
    recompute: RecomputePolicy = "none"
    is_continued: bool = False

    @property
    def parameter_key(self) -> str:
        """Key of its parameters in the stage's parameters: `module/piece`, or `module/piece/first` where it continues.

        `first` is the name of its first layer.
        """
        return self.key_of(self.piece.name)

    def key_of(self, piece: str) -> str:
        """Key of the parameters that another piece of the module, such as its adapters, has for the same layers."""
        return f"{self.module.name}/{piece}" + (f"/{layer_name(self.first)}" if self.is_continued else "")

    @property
    def computing_piece(self) -> Piece:
        """The piece that computes with the parameters: the adapted piece of an adapter piece, else the piece itself."""
        name = self.piece.adapter_of or self.piece.name
        return next(piece for piece in self.module.pieces if piece.name == name)

    @property
    def previous_piece(self) -> Piece | None:
        """The piece whose activations this one takes; None where it takes the outputs of other modules."""
        if self.first:
            return self.piece
        number = self.module.compute_pieces.index(self.piece)
        return self.module.compute_pieces[number - 1] if number else None

    @property
    def output_channel(self) -> str:
        """Channel of the activations behind its layers; layers of several stacks of a module are counted together."""
        before = self.module.layers_before(self.piece) if self.piece.layers else -self.last
        return f"{self.module.name}#{before + self.last}"

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(layer_name(layer) for layer in range(self.first, self.last))


@dataclasses.dataclass(frozen=True)
class StageLayout:
    """The layers that are placed on a stage, and the channels that enter and leave it.

    A channel carries activations from one stage to another. The channel `a>b` carries the output of module a to
    module b; the channel `a#3` carries the activations of module a into its layer 3.

    Attributes:
        stage_id: (name of the unit, number of the stage in it).
        piece_runs: The layers that are placed on the stage, in the order in which they compute.
        inputs, outputs: Names of the channels that enter and leave.
    """

    stage_id: StageId
    piece_runs: tuple[PieceRun, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def sequence_sharded_channels(self) -> frozenset[str]:
        """The channels that carry activations whose positions ranks may divide, where the plan says so.

        Only channels between layers of one module do; the positions of channels between modules are never divided.
        """
        stacks = {
            run.module.name: run.piece.sequence_parallel
            for run in self.piece_runs
            if run.piece.layers and not run.piece.adapter_of
        }
        parts = {name: name.partition("#") for name in (*self.inputs, *self.outputs)}
        return frozenset(name for name, (module, separator, _) in parts.items() if separator and stacks[module])

    @property
    def context_keys(self) -> frozenset[str]:
        """Keys of the parameters of layers whose positions context-parallel ranks divide, where the plan has some."""
        return frozenset(run.parameter_key for run in self.piece_runs if run.computing_piece.sequence_parallel)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of which layers are placed on the stage, in the order in which they compute."""
        return tuple(dict.fromkeys(run.module.name for run in self.piece_runs))

    @property
    def input_modules(self) -> dict[str, str]:
        """For every channel that enters the module that takes its activations."""
        return {name: name.partition("#")[0].rpartition(">")[2] for name in self.inputs}

    @property
    def output_modules(self) -> dict[str, str]:
        """For every channel that leaves the module that sends its activations."""
        return {name: name.partition("#")[0].partition(">")[0] for name in self.outputs}

    def batch_arrays(self) -> dict[str, tuple[str, ...]]:
        """Names of the batch arrays that the stage reads, by module."""
        names: dict[str, dict[str, None]] = {}
        for run in self.piece_runs:
            names.setdefault(run.module.name, {}).update(dict.fromkeys(piece_definition(run.piece).batch_keys))
        return {module: tuple(keys) for module, keys in names.items() if keys}

    def holds_piece(self, module: Module, piece: str) -> bool:
        """Whether layers of a module's piece are placed on the stage."""
        return any(run.module.name == module.name and run.piece.name == piece for run in self.piece_runs)


def make_stage_layouts(resolved: ResolvedPlan, modules: tuple[Module, ...]) -> dict[StageId, StageLayout]:
    """The layout of every stage, each after the stages that feed it."""
    modules_by_name = {module.name: module for module in modules}
    units = {unit.name: unit for unit in resolved.plan.units}
    return {
        stage: _stage_layout(
            stage, resolved.layers[stage], modules_by_name, resolved.graph, units[stage[0]].program_recompute(stage[1])
        )
        for stage in resolved.stages.stages
    }


def _stage_layout(
    stage: StageId,
    ranges: Sequence[LayerRun],
    modules: Mapping[str, Module],
    graph: ModuleGraph,
    recompute: Sequence[RecomputePolicy],
) -> StageLayout:
    runs: list[PieceRun] = []
    inputs: list[str] = []
    outputs: list[str] = []
    starting = {name for name, first, _ in ranges if first == 0}
    ending = {name for name, _, last in ranges if last == graph[name].layer_count}
    for name, first, last in ranges:
        layer_count = graph[name].layer_count
        module_recompute, recompute = recompute[: last - first], recompute[last - first :]
        runs += _piece_runs(modules[name], first, module_recompute, layer_count)
        if first:
            inputs.append(f"{name}#{first}")
        else:
            inputs += [f"{source}>{name}" for source in graph[name].inputs if source not in ending]
        if last < layer_count:
            outputs.append(f"{name}#{last}")
        else:
            outputs += [
                f"{name}>{target}" for source, target in graph.edges if source == name and target not in starting
            ]
    return StageLayout(stage, tuple(runs), tuple(inputs), tuple(outputs))


def _piece_runs(module: Module, first: int, policies: Sequence[RecomputePolicy], layer_count: int) -> list[PieceRun]:
    """The runs of a module's layers from `first`, of which `policies` has one policy each.

    Pieces before the stacks are placed with the first layer, pieces after them with the last, and have that layer's
    policy.
    """
    runs: list[PieceRun] = []
    last = first + len(policies)
    stack = next((number for number, piece in enumerate(module.pieces) if piece.layers), len(module.pieces))
    for number, piece in enumerate(module.pieces):
        if piece.layers:
            before = module.layers_before(piece)
            begin, end = max(first, before), min(last, before + piece.layers)
            if begin < end:
                runs += _policy_runs(module, piece, begin - before, policies[begin - first : end - first])
        elif number < stack and first == 0:
            runs.append(PieceRun(module, piece, 0, 1, recompute=policies[0]))
        elif number > stack and last == layer_count:
            runs.append(PieceRun(module, piece, 0, 1, recompute=policies[-1]))
    return runs


def _policy_runs(module: Module, piece: Piece, first: int, policies: Sequence[RecomputePolicy]) -> list[PieceRun]:
    """A stack's layers from `first`, divided where the policy changes."""
    runs: list[PieceRun] = []
    for policy, count in policy_runs(policies):
        start = runs[-1].last if runs else first
        runs.append(PieceRun(module, piece, start, start + count, recompute=policy, is_continued=bool(runs)))
    return runs


def layer_stack_shapes(layout: StageLayout) -> dict[str, LayerStackShapes]:
    """Shapes of the stage's parameters by key.

    A parameter that is tied to one of another piece is listed separately if that piece is placed on another stage. If
    both are placed on this stage, the owner's parameter is used.
    """
    shapes = {}
    for run in layout.piece_runs:
        definition = piece_definition(run.piece)
        remote_paths = [
            path for path, owner, _ in run.piece.tied_parameters if not layout.holds_piece(run.module, owner)
        ]
        shapes[run.parameter_key] = LayerStackShapes(
            layers=run.layers,
            stacked=bool(run.piece.layers),
            shapes=definition.shapes,
            splits=definition.splits,
            tied_shapes={path: definition.tied_shapes[path] for path in remote_paths},
            tied_splits={path: definition.tied_splits[path] for path in remote_paths},
        )
    return shapes


def piece_key(parameter_key: str) -> str:
    """Returns `module/piece` of a key of a stage's parameters."""
    return "/".join(parameter_key.split("/")[:2])


def trees_by_module(trees: Mapping[StageId, Tree]) -> Tree:
    """Trees by stage, `{stage id: {parameter key: {layer: ...}}}`, as `{module: {piece: {layer: ...}}}`."""
    merged: Tree = {}
    for tree in trees.values():
        for key, layers in tree.items():
            module, _, piece = piece_key(key).partition("/")
            merged.setdefault(module, {}).setdefault(piece, {}).update(layers)
    return merged


def trees_by_stage(tree: Tree, layouts: Mapping[StageId, StageLayout]) -> dict[StageId, Tree]:
    """The inverse of `trees_by_module` for the stages of a plan; pieces that the tree lacks are left out."""
    return {
        stage: {
            run.parameter_key: {layer: tree[run.module.name][run.piece.name][layer] for layer in run.layers}
            for run in layout.piece_runs
            if run.piece.name in tree.get(run.module.name, {})
        }
        for stage, layout in layouts.items()
    }
