"""Splits a traced program in two: an early one for some of its results, and a late one for the others.

The early program computes what the early results need. The late one computes the other results from the operands, and
from what the early one computed and saved for it. Every operation is in one of them, so that together they do the
arithmetic of the whole; only cheap ones, such as a transpose of an operand, are repeated instead of saved. A loop
(`lax.scan`), a call of a program or a barrier with both kinds of results is split itself: of the backward of a stack,
the early loop sends the gradient from layer to layer, and the late one computes the gradients of weights. Any other
operation, such as a `lax.cond` or a kernel that computes both, is early as a whole, and so is one with side effects.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from pallas_kernels.varying import make_varying, varying_axes
from sharding.runtime.split_programs.operations import SplitBarrier, SplitLoop
from sharding.runtime.split_programs.parts import EarlyResult, Flags, Split, chosen

_REPEATED = frozenset(
    ("broadcast_in_dim", "convert_element_type", "copy", "iota", "pcast", "pvary", "reshape", "squeeze", "transpose")
)
"""Cheap operations: they move or cast what they are given, and compute nothing else."""

_CASTS = frozenset(("pcast", "pvary"))
"""Operations that mark an array as varying over more mesh axes."""

_CALLS = frozenset(("jit", "pjit", "closed_call", "checkpoint", "remat2"))
"""Operations that run a program, under the parameter `jaxpr`, and do nothing else."""


class SplitProgram:
    """A program whose early results are computed first.

    Args:
        program: The program.
        constants: The values of its constants.
        early_results: Which results are early; the late program computes the others.

    Attributes:
        early_operands, late_operands: Which operands either program reads.
        early_results, late_results: Which results either computes.
    """

    def __init__(self, program: Jaxpr, constants: Sequence[Any], early_results: Flags) -> None:
        self._program, self.early_results = program, early_results
        self._constants = dict(zip(program.constvars, constants, strict=True))
        needed = _variables(chosen(program.outvars, early_results))
        self._split: dict[int, Split] = {}
        early: set[int] = set()
        for number, operation in reversed(list(enumerate(program.eqns))):
            wanted = [variable in needed for variable in operation.outvars]
            has_effects = _has_effects(operation)
            if not any(wanted) and not has_effects:
                continue
            early.add(number)
            part = None if has_effects else _split_operation(operation, wanted)
            if part is not None:
                self._split[number] = part
                needed |= _variables(chosen(operation.outvars, part.early_results))
            needed |= _variables(operation.invars if part is None else chosen(operation.invars, part.early_operands))
        self._early = frozenset(early)
        self._repeated = self._find_repeated()
        self.early_operands = [variable in needed for variable in program.invars]
        self.choose_late([not is_early for is_early in early_results])

    def _early_results_of(self, number: int) -> list[Any]:
        results, part = self._program.eqns[number].outvars, self._split.get(number)
        return list(results) if part is None else chosen(results, part.early_results)

    def _find_repeated(self) -> set[int]:
        """Numbers of the cheap operations whose operands are the program's, or results of such operations."""
        known, repeated = {*self._program.invars, *self._program.constvars}, set()
        for number, operation in enumerate(self._program.eqns):
            if operation.primitive.name in _REPEATED and _variables(operation.invars) <= known:
                known.update(operation.outvars)
                repeated.add(number)
        return repeated

    def choose_late(self, results: Flags) -> Flags:
        """See `Split.choose_late`."""
        self.late_results = results
        needed, saved = _variables(chosen(self._program.outvars, results)), set()
        self._late: list[int] = []
        for number, operation in reversed(list(enumerate(self._program.eqns))):
            wanted = [variable in needed for variable in operation.outvars]
            part = self._split.get(number)
            if number in self._early and number not in self._repeated:
                from_early = self._early_results_of(number)
                saved |= needed.intersection(_variables(from_early))
                wanted = [variable in needed and variable not in from_early for variable in operation.outvars]
            read = operation.invars if part is None else chosen(operation.invars, part.choose_late(wanted))
            if any(wanted):
                self._late.append(number)
                needed |= _variables(read)
        self._late.reverse()
        self._saved = [
            variable for operation in self._program.eqns for variable in operation.outvars if variable in saved
        ]
        self.late_operands = [variable in needed for variable in self._program.invars]
        return self.late_operands

    @property
    def saved_count(self) -> int:
        """See `Split.saved_count`."""
        return len(self._saved) + sum(part.saved_count for part in self._split.values())

    def early(self, operands: Sequence[Any]) -> EarlyResult:
        """Runs the early program; operands that it does not read may be anything."""
        values = self._values(operands)
        part_arrays: list[jax.Array] = []
        for number in sorted(self._early):
            operation = self._program.eqns[number]
            if number in self._split:
                results, saved = self._split[number].early([_value(values, atom) for atom in operation.invars])
                part_arrays += saved
            else:
                results = self._run(operation, values)
            values.update(zip(operation.outvars, results, strict=True))
        outcomes = zip(self._program.outvars, self.early_results, strict=True)
        results = [_value(values, atom) if is_early else None for atom, is_early in outcomes]
        return EarlyResult(results, [values[variable] for variable in self._saved] + part_arrays)

    def late(self, operands: Sequence[Any], saved: Sequence[jax.Array]) -> list[Any]:
        """Runs the late program.

        Args:
            operands: The operands of the early program; what neither `late_operands` nor a saved array has may be
                anything.
            saved: The arrays that the early program saved.
        """
        values = self._values(operands) | dict(zip(self._saved, saved, strict=False))
        position = len(self._saved)
        for number in self._late:
            operation = self._program.eqns[number]
            if number in self._split:
                part = self._split[number]
                part_arrays, position = saved[position : position + part.saved_count], position + part.saved_count
                results = part.late([_value(values, atom) for atom in operation.invars], part_arrays)
            else:
                results = self._run(operation, values)
            outcomes = zip(operation.outvars, results, strict=True)
            values.update({variable: result for variable, result in outcomes if result is not None})
        outcomes = zip(self._program.outvars, self.late_results, strict=True)
        return [_value(values, atom) if is_late else None for atom, is_late in outcomes]

    def _values(self, operands: Sequence[Any]) -> dict[Var, Any]:
        return self._constants | dict(zip(self._program.invars, operands, strict=True))

    def _run(self, operation: JaxprEqn, values: dict[Var, Any]) -> list[Any]:
        """Runs one operation and returns its results."""
        read = list(dict.fromkeys(atom for atom in operation.invars if isinstance(atom, Var)))
        if any(varying_axes(values[atom]) != varying_axes(atom.aval) for atom in read) and not _has_program(operation):
            return _run_alike(operation, [_value(values, atom) for atom in operation.invars])
        alone = self._program.replace(constvars=[], invars=read, outvars=list(operation.outvars), eqns=[operation])
        return jaxpr_as_fun(ClosedJaxpr(alone, []))(*(values[variable] for variable in read))


def _split_operation(operation: JaxprEqn, wanted: Flags) -> Split | None:
    """Splits an operation; None where it cannot be split, or all its results are early: it is early as a whole."""
    if all(wanted):
        return None
    if operation.primitive.name == "scan":
        return SplitLoop(operation, wanted, _split_program)
    if operation.primitive.name == "optimization_barrier":
        return SplitBarrier(wanted)
    if operation.primitive.name in _CALLS:
        return _split_program(operation.params["jaxpr"], wanted)
    return None


def _has_effects(operation: JaxprEqn) -> bool:
    """Whether an operation does more than compute its results; a collective's communication does not count."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in operation.effects)


def _has_program(operation: JaxprEqn) -> bool:
    """Whether an operation runs a program of its own, such as a loop."""
    return any(isinstance(value, Jaxpr | ClosedJaxpr) for value in operation.params.values())


def _run_alike(operation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """The results of an operation of which some operands vary over more mesh axes than when it was traced."""
    axes = tuple(sorted(frozenset[str]().union(*map(varying_axes, operands))))
    alike = make_varying([jnp.asarray(operand) for operand in operands], axes)
    if operation.primitive.name in _CASTS:
        return make_varying(alike, operation.params["axes"])
    with operation.ctx.manager:
        results = operation.primitive.bind(*alike, **operation.primitive.get_bind_params(operation.params))
    return list(results) if operation.primitive.multiple_results else [results]


def _split_program(program: Any, early_results: Flags) -> SplitProgram:
    """A program as a parameter of an operation, which is closed or has no constants."""
    if isinstance(program, ClosedJaxpr) and not isinstance(program, Jaxpr):
        return SplitProgram(program.jaxpr, program.consts, early_results)
    return SplitProgram(program, getattr(program, "consts", ()), early_results)  # since jax 0.12 all are alike


def split_traced(program: jax.stages.Traced, early_results: Flags) -> SplitProgram:
    """Splits a traced program; operands and results are the flattened arguments and results of the traced function."""
    return _split_program(program.jaxpr, early_results)


def _variables(atoms: Iterable[Any]) -> set[Var]:
    return {atom for atom in atoms if not isinstance(atom, Literal)}


def _value(values: dict[Var, Any], atom: Any) -> Any:
    """Returns the value of a literal or a variable, or None if the variable has none in `values`."""
    return atom.val if isinstance(atom, Literal) else values.get(atom)
