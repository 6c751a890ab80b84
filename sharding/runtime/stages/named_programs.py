"""Names for compiled programs, so that a profiler trace and an HLO dump tell stages and kinds of work apart."""

import re
from collections.abc import Callable
from typing import Any

import jax

from sharding.plans.resolved.stage_graph import StageId


def program_name(stage_id: StageId, kind: str) -> str:
    """The name of a stage's program, for example `backbone_stage1_forward`."""
    unit, stage = stage_id
    return re.sub(r"\W", "_", f"{unit}_stage{stage}_{kind}")


def named_jit(function: Callable, stage_id: StageId, kind: str, **options: Any) -> Callable:
    """`jax.jit` of a function under the name of a stage's program.

    The HLO module is called `jit_` and the name; the operations inside carry the name as a scope.

    Args:
        function: The function to compile.
        stage_id: The stage that the program belongs to.
        kind: The kind of work: `forward`, `backward`, `gather`, `update` and so on.
        **options: As in `jax.jit`.
    """
    return jit_under_name(function, program_name(stage_id, kind), **options)


def jit_under_name(function: Callable, name: str, **options: Any) -> Callable:
    """`jax.jit` of a function under a name, as `named_jit`."""

    def program(*arguments: Any) -> Any:
        with jax.named_scope(name):
            return function(*arguments)

    program.__name__ = program.__qualname__ = name
    return jax.jit(program, **options)
