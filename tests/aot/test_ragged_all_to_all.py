"""The exchange of rows compiled for H100s: what each form sends."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.h100_schedule.compilation import TENSOR, compile_for_h100, tensor_mesh
from mmjax.training.dry_run.overlap import find_collectives
from mmjax.training.dry_run.targets import missing_plugin
from pallas_kernels.ragged_all_to_all import ragged_all_to_all

pytestmark = [pytest.mark.aot, pytest.mark.skipif(bool(missing_plugin()), reason=missing_plugin())]

RANKS, ROWS, ROOM, WIDTH = 8, 4096, 6144, 1024


def kinds(implementation: str, backward: bool) -> dict[str, int]:
    """Bytes of the largest collective of each kind."""
    mesh = tensor_mesh(RANKS)

    def forward(x: jax.Array, sent: jax.Array) -> jax.Array:
        return ragged_all_to_all(x, sent, rows=ROOM, axis=TENSOR, implementation=implementation)

    def gradient(x: jax.Array, sent: jax.Array) -> jax.Array:
        y, pull = jax.vjp(lambda x: forward(x, sent), x)
        return pull(y)[0]

    body = gradient if backward else forward
    mapped = jax.shard_map(body, mesh=mesh, in_specs=P(TENSOR), out_specs=P(TENSOR))
    x = jax.ShapeDtypeStruct((RANKS * ROWS, WIDTH), jnp.bfloat16, sharding=NamedSharding(mesh, P(TENSOR)))
    sent = jax.ShapeDtypeStruct((RANKS * RANKS,), jnp.int32, sharding=NamedSharding(mesh, P(TENSOR)))
    largest: dict[str, int] = {}
    for collective in find_collectives(compile_for_h100(mapped, (x, sent), {}).program):
        largest[collective.kind] = max(largest.get(collective.kind, 0), collective.size)
    return largest


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("implementation", "kind"), [("ragged", "ragged-all-to-all"), ("padded", "all-to-all"), ("gather", "all-gather")]
)
def test_rows_travel_by_one_kind_of_collective_and_else_only_numbers_of_rows(implementation, kind, backward):
    numbers = RANKS * RANKS * 4
    assert {other for other, size in kinds(implementation, backward).items() if size > numbers} == {kind}


def test_only_the_ragged_form_makes_no_room_for_what_may_come_from_every_rank():
    row, numbers = 2 * WIDTH, RANKS * RANKS * 4
    assert kinds("ragged", False)["ragged-all-to-all"] <= (ROWS + ROOM) * row + numbers
    assert kinds("padded", False)["all-to-all"] == RANKS * ROWS * row
    assert kinds("gather", False)["all-gather"] == RANKS * ROWS * row
