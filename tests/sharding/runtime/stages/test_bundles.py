"""Two programs as one: results bit for bit, shardings, donation, and no loop of either before the other's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.runtime.stages.bundles import BundledPrograms, device_order
from sharding.runtime.stages.compilation import ProgramCall
from sharding.runtime.stages.named_programs import named_jit

RANDOM = np.random.default_rng(0)
MESH_SHAPES = {"encoder": {"data": 4, "tensor": 2}, "backbone": {"data": 2, "expert": 2, "tensor": 2}}


def mesh_of(name: str) -> Mesh:
    """The same devices for either stage, with other axes."""
    sizes = MESH_SHAPES[name]
    return Mesh(np.array(jax.devices()[:8]).reshape(*sizes.values()), tuple(sizes))


def stage(name: str, layers: int, donated: tuple[int, ...] = (2,)) -> ProgramCall:
    """A stage's tensor-parallel layers on a mesh of its own, which add to a sum that they donate."""
    mesh = mesh_of(name)
    axes = tuple(axis for axis in mesh.axis_names if axis != "tensor")

    def body(weights, x, total):
        def layer(x, weights):
            return lax.psum(jnp.tanh(x @ weights["up"]) @ weights["down"], "tensor"), None

        x, _ = lax.scan(layer, x, weights)
        return x, total + x.sum(axis=1)

    split = {"up": P(None, None, "tensor"), "down": P(None, "tensor", None)}
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(split, P(axes), P(axes)), out_specs=(P(axes), P(axes)))

    def placed(spec, *shape):
        return jax.device_put(RANDOM.standard_normal(shape, np.float32), NamedSharding(mesh, spec))

    weights = {"up": placed(split["up"], layers, 6, 8), "down": placed(split["down"], layers, 8, 6)}
    program = named_jit(mapped, (name, 0), "forward", donate_argnums=donated)
    return ProgramCall(program, (weights, placed(P(axes), 8, 6), placed(P(axes), 8)))


def gather(name: str) -> ProgramCall:
    """A program that XLA partitions itself: weights sharded over data become whole."""
    sharding = NamedSharding(mesh_of(name), P("data"))
    masters = jax.device_put(RANDOM.standard_normal((8, 4), np.float32), sharding)
    program = named_jit(
        lambda x: x.astype(jnp.bfloat16), (name, 0), "gather", out_shardings=NamedSharding(mesh_of(name), P())
    )
    return ProgramCall(program, (masters,))


def run(call: ProgramCall):
    """What a call returns; its arguments are copied first, because some are donated."""
    return call.program(*jax.tree.map(jnp.copy, call.arguments))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((stage, "encoder", 1), (stage, "backbone", 1)),
        ((stage, "backbone", 1), (stage, "encoder", 1)),
        ((gather, "backbone"), (stage, "encoder", 1)),
    ],
)
def test_a_bundle_gives_what_its_programs_give_alone_bit_for_bit(first, second):
    """Stages of one layer have no loop, of which XLA would compile the body apart."""
    first, second = (make(*arguments) for make, *arguments in (first, second))
    alone = run(first), run(second)
    together = run(BundledPrograms().bundle(first, second))
    assert jax.tree.structure(together) == jax.tree.structure(alone)
    for actual, expected in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(actual, expected)
        assert actual.sharding.is_equivalent_to(expected.sharding, actual.ndim)


def test_what_either_program_donates_is_donated_and_nothing_else():
    first, second = stage("encoder", 2, donated=(1, 2)), stage("backbone", 2)
    program, arguments = BundledPrograms().bundle(first, second)
    program(*arguments)
    deleted = [all(leaf.is_deleted() for leaf in jax.tree.leaves(argument)) for argument in arguments]
    assert deleted == [False, True, True, False, False, True]


def test_no_loop_of_layers_is_left_in_a_bundle():
    first, second = stage("encoder", 2), stage("backbone", 3)
    program, arguments = BundledPrograms().bundle(first, second)
    assert "while" in first.program.lower(*first.arguments).as_text()
    assert "while" not in program.lower(*arguments).as_text()


def test_a_bundle_is_named_after_both_programs_and_made_once():
    first, second, bundled = stage("encoder", 1), stage("backbone", 1), BundledPrograms()
    program, arguments = bundled.bundle(first, second)
    assert program.__name__ == "encoder_stage0_forward_beside_backbone_stage0_forward"
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), first.arguments
    )
    assert bundled.bundle(first, second).program is program
    assert bundled.bundle(ProgramCall(first.program, abstract), second).program is program
    assert bundled.bundle(second, first).program is not program
    assert arguments == (*first.arguments, *second.arguments)


def test_the_device_order_of_a_mesh_does_not_depend_on_its_axes():
    assert device_order(mesh_of("encoder")) == device_order(mesh_of("backbone")) == list(range(8))
