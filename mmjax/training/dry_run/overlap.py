"""Which matmuls run while a collective runs, by the order in which XLA issues both.

A collective runs from its start to its done. What is issued between them runs at the same time, as far as the
device has room: the schedule says what may overlap, not how long either takes.
"""

import collections
import dataclasses
import math
import re

from mmjax.training.dry_run.scheduled_hlo import (
    Computation,
    Instruction,
    ScheduledProgram,
    result_arrays,
    result_bytes,
)

KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
         "reduce-scatter")  # fmt: skip
_GEMMS = ("__cublas$",)
_CONVOLUTIONS = ("__cudnn$conv",)
_MOSAIC = "mosaic_gpu"
_FLOATS = ("bf16", "f16", "f32")
_KERNELS = ("__cudnn$fmha", "mosaic_gpu")  # matmuls of which the program says no shapes
_CONTRACTING = re.compile(r"lhs_contracting_dim(?:ension)?s\"?[=:][{\[]([\d,\"]*)[}\]]")
_LABELS = re.compile(r"dim_labels=\w+_(\w+)->")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')


@dataclasses.dataclass(frozen=True)
class MatmulProduct:
    """One matmul or convolution: the shape of its result, and how many products each element sums up."""

    shape: tuple[int, ...]
    summed: int

    @property
    def flops(self) -> int:
        """Floating-point operations, two for each multiply-add."""
        return 2 * math.prod(self.shape) * self.summed

    def __str__(self) -> str:
        return f"{list(self.shape)} over {self.summed}"


@dataclasses.dataclass(frozen=True)
class Matmul:
    """An instruction that computes matmuls.

    Attributes:
        name: Name of the instruction.
        products: The matmuls that it computes, or empty where the program does not say, as for attention kernels.
        operation: Its place in the model, as jax names it (`op_name`).
        computation: The computation that issues it.
    """

    name: str
    products: tuple[MatmulProduct, ...]
    operation: str
    computation: str

    @property
    def flops(self) -> int:
        """Floating-point operations of all its matmuls."""
        return sum(product.flops for product in self.products)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective of a scheduled program.

    Attributes:
        name: Name of the instruction that starts it.
        kind: One of `KINDS`.
        operation: Its place in the model, as jax names it (`op_name`).
        computation: The computation that issues it.
        size: Bytes that one device sends or receives, whichever are more.
        smaller: Bytes of the other side: what each device gives to a gather, or keeps of what is scattered.
        synchronous: Whether XLA waits for it at its start, whatever is issued before its done.
        concurrent_matmuls: Matmuls issued while it runs.
    """

    name: str
    kind: str
    operation: str
    computation: str
    size: int
    smaller: int
    synchronous: bool
    concurrent_matmuls: tuple[Matmul, ...]

    @property
    def hidden(self) -> bool:
        """Whether a matmul runs while the collective does."""
        return bool(self.concurrent_matmuls) and not self.synchronous

    @property
    def flops(self) -> int:
        """Floating-point operations of the matmuls that run while the collective does."""
        return 0 if self.synchronous else sum(matmul.flops for matmul in self.concurrent_matmuls)


def find_collectives(program: ScheduledProgram) -> list[Collective]:
    """Every collective in the order of issue. The body of a loop counts once."""
    return [collective for computation in program.issued() for collective in _of(program, computation)]


def find_matmuls(program: ScheduledProgram) -> list[Matmul]:
    """Every instruction that computes matmuls, in the order of issue. The body of a loop counts once."""
    return [
        matmul
        for computation in program.issued()
        for instruction in computation.instructions
        if instruction.opcode not in ("while", "call", "conditional")
        for matmul in _matmul(program, computation, instruction)
    ]


def covered_by(collective: Collective) -> str:
    """The matmuls that run while a collective does, in words; empty if it is exposed."""
    if not collective.hidden:
        return ""
    counted = collections.Counter(
        str(product) for matmul in collective.concurrent_matmuls for product in matmul.products
    )
    return ", ".join(f"{count} x {product}" for product, count in counted.items()) or "kernels"


def executions(program: ScheduledProgram) -> dict[str, int]:
    """How many times each computation that is issued runs, by name; once for each iteration of a loop around it."""
    times = {program.entry: 1}
    for computation in program.issued():
        for instruction in computation.instructions:
            if instruction.opcode in ("while", "call", "conditional"):
                for called in program.called_by(instruction):
                    times[called.name] = times.get(called.name, 0) + times[computation.name] * _trips(instruction)
    return times


def _trips(instruction: Instruction) -> int:
    """Iterations of a loop; 1 of one that does not say how many, and of other instructions."""
    trips = _TRIPS.search(instruction.rest) if instruction.opcode == "while" else None
    return int(trips[1]) if trips else 1


def _of(program: ScheduledProgram, computation: Computation) -> list[Collective]:
    collectives: list[Collective] = []
    under_way: dict[str, tuple[Instruction, str, list[Matmul]]] = {}
    for instruction in computation.instructions:
        kind = _kind(program, instruction)
        if instruction.opcode.endswith("-done"):
            # A collective that the loop's previous turn started is not here. It ran to the end of that turn.
            if started := under_way.pop(_start_of(computation, instruction), None):
                start, kind, concurrent = started
                collectives.append(_collective(computation, start, kind, instruction.type, concurrent))
        elif kind and instruction.opcode.endswith("-start"):
            under_way[instruction.name] = instruction, kind, []
        elif kind:
            collectives.append(_collective(computation, instruction, kind, instruction.type, []))
        else:
            for matmul in _matmul(program, computation, instruction):
                for _, _, concurrent in under_way.values():
                    concurrent.append(matmul)
    # A collective that one turn of a loop starts and the next one ends runs to the end of its turn.
    collectives += [
        _collective(computation, start, kind, "", concurrent) for start, kind, concurrent in under_way.values()
    ]
    issued = [instruction.name for instruction in computation.instructions]
    return sorted(collectives, key=lambda collective: issued.index(collective.name))


def _kind(program: ScheduledProgram, instruction: Instruction) -> str:
    """Which collective an instruction starts or is; empty for other instructions."""
    base = instruction.opcode.removesuffix("-start")
    if base in KINDS:
        return base
    if base == "async":
        called = [inner.opcode for computation in program.called_by(instruction) for inner in computation.instructions]
        return next((opcode for opcode in called if opcode in KINDS), "")
    return ""


def _start_of(computation: Computation, done: Instruction) -> str:
    """The start that a done (or the update before it) belongs to."""
    name = done.operands[0]
    while (instruction := computation[name]).opcode.endswith("-update"):
        name = instruction.operands[0]
    return name


def _collective(
    computation: Computation, start: Instruction, kind: str, result: str, concurrent: list[Matmul]
) -> Collective:
    given = sum(result_bytes(computation[name].type) for name in start.operands)
    return Collective(
        name=start.name,
        kind=kind,
        operation=_operation(start),
        computation=computation.name,
        size=max(given, result_bytes(result)),
        smaller=min(given, result_bytes(result)),
        synchronous='"is_sync":true' in start.rest or not start.opcode.endswith("-start"),
        concurrent_matmuls=tuple(concurrent),
    )


def _operation(instruction: Instruction) -> str:
    named = re.search(r'op_name="([^"]*)"', instruction.rest)
    return named[1] if named else ""


def _matmul(program: ScheduledProgram, computation: Computation, instruction: Instruction) -> list[Matmul]:
    """The instruction, if it or what it calls computes matmuls."""
    products = _products(program, computation, instruction)
    return [] if products is None else [Matmul(instruction.name, products, _operation(instruction), computation.name)]


def _products(
    program: ScheduledProgram, computation: Computation, instruction: Instruction
) -> tuple[MatmulProduct, ...] | None:
    """The matmuls of an instruction and of all that it calls; None if there is none."""
    if instruction.opcode == "dot":
        return (_product(computation, instruction),)
    if instruction.opcode == "convolution":
        return (_convolution(computation, instruction, ""),)
    if instruction.opcode == "custom-call":
        target = re.search(r'custom_call_target="([^"]*)"', instruction.rest)
        name = target[1] if target else ""
        if name.startswith(_GEMMS):
            return (_product(computation, instruction),)
        if name.startswith(_CONVOLUTIONS):
            return (_convolution(computation, instruction, name),)
        if name.startswith(_MOSAIC) and (product := _grouped(instruction)):
            return (product,)
        return () if name.startswith(_KERNELS) else None
    inside = [
        products
        for called in program.called_by(instruction)
        for inner in called.instructions
        if (products := _products(program, called, inner)) is not None
    ]
    if not inside:
        return None
    return sum(inside, start=()) * _trips(instruction)


def _product(computation: Computation, instruction: Instruction) -> MatmulProduct:
    """Reads a matmul from its result, the first of a tuple whose rest is workspace, and the left operand."""
    contracting = _CONTRACTING.search(instruction.rest)
    if contracting is None:
        raise ValueError(f"{instruction.name} does not say what it contracts: {instruction.rest[:200]}")
    ((_, left),) = result_arrays(computation[instruction.operands[0]].type)
    dimensions = [int(number) for number in re.findall(r"\d+", contracting[1])]
    return MatmulProduct(result_arrays(instruction.type)[0][1], math.prod(left[at] for at in dimensions))


def _grouped(instruction: Instruction) -> MatmulProduct | None:
    """A grouped matmul of our kernels (`pallas_kernels.grouped_matmul`), by its shapes: all rows times one matrix.

    Its operands are sizes of groups `[g]`, then rows and matrices, or two arrays of rows. None for other kernels.
    """
    constraints = re.search(r"operand_layout_constraints=\{(.*?)\}, \w+=", instruction.rest)
    (_, result), *more = result_arrays(instruction.type)
    shapes = [shape for kind, shape in result_arrays(constraints[1] if constraints else "") if kind.startswith(_FLOATS)]
    groups = [shape for kind, shape in result_arrays(constraints[1] if constraints else "") if kind == "s32"]
    if more or not groups or len(shapes) != 2 or len(shapes[0]) != 2:
        return None
    rows, inner = shapes[0]
    if len(shapes[1]) == 3 and result[0] == rows:  # the product, or the dgrad
        return MatmulProduct(result, inner)
    if len(result) == 3 and shapes[1][0] == rows:  # the wgrad: each row belongs to one group
        return MatmulProduct(result[1:], rows)
    return None


def _convolution(computation: Computation, instruction: Instruction, target: str) -> MatmulProduct:
    """A convolution, or a gradient of one, as the matmul of its patches with its weights, which has as many FLOPs."""
    labels = _LABELS.search(instruction.rest)
    if labels is None:
        raise ValueError(f"{instruction.name} does not say its dimensions: {instruction.rest[:200]}")
    result = result_arrays(instruction.type)[0][1]
    first, second = (result_arrays(computation[name].type)[0][1] for name in instruction.operands[:2])
    of_output, weights = result, second
    if "BackwardInput" in target:
        of_output = first
    elif "BackwardFilter" in target:
        of_output, weights = second, result
    return MatmulProduct(of_output, math.prod(weights) // weights[labels[1].index("o")])
