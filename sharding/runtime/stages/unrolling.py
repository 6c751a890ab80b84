"""Writes out loops over layers, so that what XLA schedules around a layer is not the whole loop.

XLA moves nothing into a loop: of two loops in one program, the second starts when the first has ended. The loops are
written out in the program that is lowered, after differentiation: what a forward saves for a backward stays as it is.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun


def unroll_outermost_loops(function: Callable) -> Callable:
    """The same function with its outermost `lax.scan` loops written out; loops inside of these stay loops.

    Args:
        function: A function to be compiled, of positional arrays.
    """

    def program(*arguments: Any) -> Any:
        traced, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
        arrays = jaxpr_as_fun(_unrolled(traced))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(results), arrays)

    return program


def _unrolled(parameter: Any) -> Any:
    """A parameter of an operation, with the loops unrolled where it is a program."""
    if isinstance(parameter, Jaxpr):  # first: since jax 0.12 a closed one is a Jaxpr too
        return parameter.replace(eqns=[_with_unrolled(operation) for operation in parameter.eqns])
    if isinstance(parameter, ClosedJaxpr):
        return parameter.replace(jaxpr=_unrolled(parameter.jaxpr))
    return parameter


def _with_unrolled(operation: JaxprEqn) -> JaxprEqn:
    if operation.primitive.name == "scan":
        return operation.replace(params=operation.params | {"unroll": operation.params["length"]})
    return operation.replace(params={name: _unrolled(value) for name, value in operation.params.items()})
