"""Operations that are split: loops, and barriers."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import JaxprEqn

from sharding.runtime.split_programs.parts import EarlyResult, Flags, Split, chosen, placed


class SplitLoop:
    """A `lax.scan` of which some results are early: two loops, the second over what the first saved in each step.

    Args:
        loop: The operation.
        wanted: The results that are needed early.
        split: Splits the program of a step, given which of its results are early.
    """

    def __init__(self, loop: JaxprEqn, wanted: Flags, split: Callable[[Any, Flags], Split]) -> None:
        self._loop = loop
        self._constants, self._carries = _loop_sizes(loop)
        early = wanted
        while True:
            self._body = split(loop.params["jaxpr"], early)
            _, carried, _ = self._parts(self._body.early_operands)
            more = [is_early or is_read for is_early, is_read in zip(early[: self._carries], carried, strict=True)]
            if more == early[: self._carries]:
                break
            early = [*more, *wanted[self._carries :]]
        self.early_results = early
        constants, _, sliced = self._parts(self._body.early_operands)
        self._early_carries = early[: self._carries]
        self.early_operands = [*constants, *self._early_carries, *sliced]
        self._early_sliced, self._early_stacks = sliced, early[self._carries :]
        self.choose_late([False] * len(wanted))

    def _parts(self, entries: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Divides entries of the operands, or of the body's, into constants, carried and per-step arrays."""
        first, second = self._constants, self._constants + self._carries
        return entries[:first], entries[first:second], entries[second:]

    def choose_late(self, results: Flags) -> Flags:
        """See `Split.choose_late`; what the early loop carries is saved where the late one reads it."""
        late = results
        while True:
            constants, carried, sliced = self._parts(self._body.choose_late(late))
            more = [
                is_late or (is_read and not is_early)
                for is_late, is_read, is_early in zip(late[: self._carries], carried, self._early_carries, strict=True)
            ]
            if more == late[: self._carries]:
                break
            late = [*more, *results[self._carries :]]
        self._late_carries = late[: self._carries]
        self._saved_carries = [is_read and early for is_read, early in zip(carried, self._early_carries, strict=True)]
        self._late_sliced, self._late_stacks = sliced, late[self._carries :]
        return [*constants, *self._late_carries, *sliced]

    @property
    def saved_count(self) -> int:
        """See `Split.saved_count`."""
        return sum(self._saved_carries) + self._body.saved_count

    def early(self, operands: Sequence[Any]) -> EarlyResult:
        """See `Split.early`."""
        constants, initial, sliced = self._parts(operands)

        def step(carry: list[Any], step_operands: list[Any]) -> tuple[list[Any], tuple[list[Any], list[Any]]]:
            carried = placed(carry, self._early_carries)
            results, saved = self._body.early([*constants, *carried, *placed(step_operands, self._early_sliced)])
            kept = chosen(carried, self._saved_carries)
            new = chosen(results[: self._carries], self._early_carries)
            return new, (chosen(results[self._carries :], self._early_stacks), [*kept, *saved])

        initial = chosen(initial, self._early_carries)
        carry, (stacks, saved) = self._scan(step, initial, chosen(sliced, self._early_sliced))
        return EarlyResult(placed(carry, self._early_carries) + placed(stacks, self._early_stacks), saved)

    def late(self, operands: Sequence[Any], saved: Sequence[jax.Array]) -> list[Any]:
        """See `Split.late`."""
        constants, initial, sliced = self._parts(operands)
        kept_count = sum(self._saved_carries)

        def step(carry: list[Any], step_inputs: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
            step_operands, early_arrays = step_inputs
            carried = placed(carry, self._late_carries)
            kept = placed(early_arrays[:kept_count], self._saved_carries)
            both = [
                carried_array if carried_array is not None else other
                for carried_array, other in zip(carried, kept, strict=True)
            ]
            operands = [*constants, *both, *placed(step_operands, self._late_sliced)]
            results = self._body.late(operands, early_arrays[kept_count:])
            new = chosen(results[: self._carries], self._late_carries)
            return new, chosen(results[self._carries :], self._late_stacks)

        initial = chosen(initial, self._late_carries)
        carry, stacks = self._scan(step, initial, (chosen(sliced, self._late_sliced), list(saved)))
        return placed(carry, self._late_carries) + placed(stacks, self._late_stacks)

    def _scan(self, step: Any, initial: list[Any], sliced: Any) -> Any:
        settings = {name: self._loop.params[name] for name in ("length", "reverse", "unroll")}
        return lax.scan(step, initial, sliced, **settings)


class SplitBarrier:
    """A `lax.optimization_barrier` of some arrays: one barrier of the arrays wanted early, and one of the others.

    Args:
        wanted: The arrays that are wanted early.
    """

    saved_count = 0

    def __init__(self, wanted: Flags) -> None:
        self.early_operands = self.early_results = wanted
        self.choose_late([False] * len(wanted))

    def choose_late(self, results: Flags) -> Flags:
        """See `Split.choose_late`."""
        self._late = results
        return results

    def early(self, operands: Sequence[Any]) -> EarlyResult:
        """See `Split.early`."""
        return EarlyResult(_behind_barrier(operands, self.early_results), [])

    def late(self, operands: Sequence[Any], saved: Sequence[jax.Array]) -> list[Any]:
        """See `Split.late`."""
        return _behind_barrier(operands, self._late)


def _behind_barrier(operands: Sequence[Any], flags: Flags) -> list[Any]:
    """The operands with a flag, behind one barrier; None at the places of the others."""
    return placed(lax.optimization_barrier(chosen(operands, flags)), flags)


def _loop_sizes(loop: JaxprEqn) -> tuple[int, int]:
    """How many constants a scan has, and how many arrays it carries."""
    if "num_consts" in loop.params:
        return loop.params["num_consts"], loop.params["num_carry"]
    constants, carried, _ = loop.params["ft_in"].unpack()  # since jax 0.12
    return len(constants), len(carried)
