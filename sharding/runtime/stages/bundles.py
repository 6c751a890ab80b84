"""Bundles: two programs on the same devices compiled as one, so that one computes while the other sends and receives.

Either program keeps its mesh, its residuals and its results. The devices must be in one order: XLA numbers the devices
of a program once.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from sharding.runtime.stages.compilation import ProgramCall
from sharding.runtime.stages.named_programs import jit_under_name
from sharding.runtime.stages.unrolling import unroll_outermost_loops

COMPILER_OPTIONS = {
    f"xla_gpu_{kind}_combine_threshold_bytes": 2**20 for kind in ("all_gather", "all_reduce", "reduce_scatter")
}
"""Only small collectives are combined. XLA would join a collective of each program in a single one, for which both
programs then wait at once, and that neither computes beside."""


class BundledPrograms:
    """The bundles of a pipeline: each is made when it is first asked for, and compiled when it is first called."""

    def __init__(self) -> None:
        self._programs: dict[tuple[Callable, Callable], Callable] = {}

    def bundle(self, first: ProgramCall, second: ProgramCall) -> ProgramCall:
        """The call of one program that does what two calls do; it returns the results of both as a pair.

        What either program donates is donated.

        Args:
            first, second: Calls with arrays or with abstract ones. Neither takes what the other makes or donates.
        """
        key = (first.program, second.program)
        if key not in self._programs:
            self._programs[key] = _bundled(first, second)
        return ProgramCall(self._programs[key], (*first.arguments, *second.arguments))


def device_order(mesh: Mesh) -> list[int]:
    """The ids of a mesh's devices in order, which must be the same for both programs of a bundle."""
    return [device.id for device in mesh.devices.flat]


def _bundled(first: ProgramCall, second: ProgramCall) -> Callable:
    count = len(first.arguments)

    def both(*arguments: Any) -> tuple[Any, Any]:
        return first.program(*arguments[:count]), second.program(*arguments[count:])

    donated = (*_donated(first), *(count + number for number in _donated(second)))
    name = f"{first.program.__name__}_beside_{second.program.__name__}"
    return jit_under_name(unroll_outermost_loops(both), name, donate_argnums=donated, compiler_options=COMPILER_OPTIONS)


def _donated(call: ProgramCall) -> list[int]:
    """Numbers of the arguments that a program donates."""
    arguments, _ = call.program.trace(*call.arguments).args_info
    return [
        number for number, argument in enumerate(arguments) if any(leaf.donated for leaf in jax.tree.leaves(argument))
    ]
