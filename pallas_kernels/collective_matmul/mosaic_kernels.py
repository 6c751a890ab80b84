"""Collective matmuls as Hopper kernels (Mosaic GPU): peers' tiles arrive while wgmma runs on the previous ones.

Nothing here was ever run on a GPU, and nothing is tuned. What was done without one: the tile code was run in the GPU
interpreter; the order of `protocol.py` was checked in every interleaving of few ranks and run with data on the cores of
the TPU interpreter; the kernels were lowered for CUDA and compiled for H100s through ptxas. That no rank enters such a
kernel before all ranks of the mesh have reached it, so that a peer's buffers exist and its counters are zero, follows
from the sources of jaxlib's custom call and was not observed. With one GPU, `benchmarks/gpu/mosaic_loopback.py` runs
the kernels.

The tiles are multiplied by the matmul that jax ships for Hopper (`hopper_matmul_mgpu.kernel`). jax also ships an
all-gather matmul on top of it, which is not used: it needs the axis to span all devices, does not return what it
gathered, counts all arrivals in one counter (see `protocol.py`), and, according to its source, may load the next tile
over the last one of a product while that is still being copied to the peer. Here the memory of a tile is released only
after the copy has read it.

The gathered x is an output, because the peers' chunks need memory anyway; so the wgrad needs no second gather. The
reduce-scatter sends every partial result in bfloat16 to the rank that needs it, which sums them in float32: as many
bytes as a plain reduce-scatter of bfloat16, with one rounding for each partial result instead of one for each hop.

Neither function has a derivative: the dgrad of each is the other.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hopper
from jaxlib.mlir.dialects import nvvm
from jaxtyping import Array, Float

from pallas_kernels.collective_matmul import protocol
from pallas_kernels.collective_matmul.mosaic_peers import BLOCKS, LoopbackPeers, RemotePeers
from pallas_kernels.collective_matmul.mosaic_support import (
    PIPELINE_DEPTH,
    TILE_DEPTH,
    WarpgroupTiles,
    automatic_axes_reason,
    choose_tiles,
    one_rank_reason,
    unsupported_shape_reason,
)
from pallas_kernels.target_device import target_device
from pallas_kernels.varying import make_varying, varying_axes

COMPUTE_WARPGROUPS = 2  # besides the one that loads


def all_gather_matmul(
    x: Float[Array, "m d"], weights: tuple[jax.Array, ...], axes: tuple[str, ...]
) -> tuple[tuple[jax.Array, ...], Float[Array, "n m d"]]:
    """Every rank's x times this rank's weights; inside `jax.shard_map` with all mesh axes manual.

    Args:
        x: This rank's chunk.
        weights: `[d, f]` each.
        axes: The mesh axes to gather over.

    Returns:
        For each weight `[n, m, f]`, chunks in the order of the ranks; and the gathered x. Both vary over `axes` and all
        axes that the arguments vary over.

    Raises:
        NotImplementedError: See `mosaic_support`. A mesh of only some of the devices is refused by the lowering.
    """
    _check(x.shape[0], x.shape[1], [w.shape[1] for w in weights], [x, *weights])
    peers = _remote(axes)
    *products, gathered = _gather_kernel(peers, x.shape, [w.shape for w in weights])(x, *weights)
    products, gathered = _varying((products, gathered), (x, weights), axes)
    return tuple(products), gathered


def matmul_reduce_scatter(
    x: Float[Array, "n m d"], w: Float[Array, "d f"], axes: tuple[str, ...]
) -> Float[Array, "m f"]:
    """The sum over ranks of x @ w, of which rank i keeps chunk i; inside `jax.shard_map` with all mesh axes manual.

    Args:
        x: Chunks in the order of the ranks.
        w: This rank's rows of the weight.
        axes: The mesh axes to sum over.

    Returns:
        The chunk `[m, f]`, varying over `axes` and all axes that the arguments vary over.

    Raises:
        NotImplementedError: See `mosaic_support`. A mesh of only some of the devices is refused by the lowering.
        ValueError: x has not one chunk for each rank.
    """
    _check(x.shape[1], x.shape[2], [w.shape[1]], [x, w])
    peers = _remote(axes)
    if x.shape[0] != peers.ranks:
        raise ValueError(f"x is {list(x.shape)}: one chunk for each of {peers.ranks} ranks of {axes} is needed")
    partials = _scatter_kernel(peers, x.shape[1:], w.shape)(x, w)
    return _varying(_sum(partials, axis=0), (x, w), axes)


def loopback_all_gather_matmul(x: jax.Array, weights: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """`all_gather_matmul` of virtual ranks on one GPU: all arrays have a leading dimension of ranks."""
    ranks, *shape = x.shape
    _check(shape[0], shape[1], [w.shape[2] for w in weights], [x, *weights])
    *products, gathered = _gather_kernel(LoopbackPeers(ranks), tuple(shape), [w.shape[1:] for w in weights])(
        x, *weights
    )
    return tuple(products), gathered


def loopback_matmul_reduce_scatter(x: jax.Array, w: jax.Array) -> jax.Array:
    """`matmul_reduce_scatter` of virtual ranks on one GPU: all arrays have a leading dimension of ranks."""
    _check(x.shape[2], x.shape[3], [w.shape[2]], [x, w])
    return _sum(_scatter_kernel(LoopbackPeers(x.shape[0]), x.shape[2:], w.shape[1:])(x, w), axis=1)


def _gather_kernel(
    peers: RemotePeers | LoopbackPeers, shape: tuple[int, ...], weights: Sequence[tuple[int, ...]]
) -> Callable[..., Any]:
    ranks, (rows, depth) = peers.ranks, shape
    widths = [width for _, width in weights]
    port = functools.partial(_Gather, peers, _config(choose_tiles(rows, depth, widths)))
    outputs = [(ranks, rows, width) for width in widths] + [(ranks, rows, depth)]

    def all_gather_matmul_kernel(*refs):
        x, weights, products, gathered = refs[0], refs[1 : 1 + len(widths)], refs[1 + len(widths) : -1], refs[-1]
        protocol.run_protocol(
            protocol.all_gather_protocol(ranks), port(peers.counters(), x, weights, products, gathered)
        )

    return _launch(all_gather_matmul_kernel, peers, outputs)


def _scatter_kernel(
    peers: RemotePeers | LoopbackPeers, shape: tuple[int, ...], weight: tuple[int, ...]
) -> Callable[..., Any]:
    ranks, (rows, depth), width = peers.ranks, shape, weight[1]
    port = functools.partial(_Scatter, peers, _config(choose_tiles(rows, depth, [width])))

    def matmul_reduce_scatter_kernel(x, w, partials):
        protocol.run_protocol(protocol.reduce_scatter_protocol(ranks), port(peers.counters(), x, w, partials))

    launched = _launch(matmul_reduce_scatter_kernel, peers, [(ranks, rows, width)])
    return lambda x, w: launched(x, w)[0]


def _launch(
    body: Callable[..., None], peers: RemotePeers | LoopbackPeers, outputs: list[tuple[int, ...]]
) -> Callable[..., Any]:
    grid, names = peers.grid(target_device().multiprocessors)
    leading = () if isinstance(peers, RemotePeers) else (peers.ranks,)
    return plgpu.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct((*leading, *shape), jnp.bfloat16) for shape in outputs],
        grid=grid,
        grid_names=names,
        cluster=(1,),
        cluster_names=("cluster",),
        num_threads=COMPUTE_WARPGROUPS + 1,
        thread_name="wg",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )


class _Port:
    """One warpgroup of one block; `notifiers` warpgroups of a block increment the counter of a slot."""

    notifiers: int

    def __init__(self, peers: RemotePeers | LoopbackPeers, config: hopper.TuningConfig, counters: Any) -> None:
        self.peers, self.config, self.counters = peers, config, counters
        self.warpgroup = lax.axis_index("wg")
        self.own = peers.rank()

    def rank(self, offset: int) -> Any:
        return lax.rem(self.own + jnp.int32(offset), jnp.int32(self.peers.ranks))

    def wait(self, slot: Any) -> None:
        counter = self.peers.mine(self.counters).at[slot]
        pl.semaphore_wait(counter, value=self.notifiers * lax.axis_size(BLOCKS), decrement=False)
        _fence_async_proxy()  # pyright: ignore[reportCallIssue]  # `inline_mgpu` passes the context

    def notify(self, target: Any, slot: Any) -> None:
        @pl.when(self.warpgroup < self.notifiers)
        def _():
            plgpu.wait_smem_to_gmem(0, wait_read_only=False)  # until written, not only read
            self.peers.signal(self.counters, target, slot)


class _Gather(_Port):
    """Multiplies a chunk with every weight; sends its tiles on during the first column of tiles of the first weight."""

    notifiers = 1  # the warpgroup that sends

    def __init__(self, peers, config, counters, x, weights, products, gathered) -> None:
        super().__init__(peers, config, counters)
        self.x, self.weights, self.products, self.gathered = x, weights, products, gathered

    def multiply(self, step: protocol.ProtocolStep, chunk: Any, target: Any, slot: Any) -> None:
        mine = self.peers.mine
        source = mine(self.gathered).at[chunk] if step.waits else mine(self.x)
        copies = [] if step.waits else [mine(self.gathered).at[chunk]]
        if target is not None:
            copies.append(self.peers.peer(self.gathered, target).at[slot])
        for i, (w, product) in enumerate(zip(self.weights, self.products, strict=True)):
            callback = functools.partial(copy_tile, config=self.config, copies=copies) if copies and i == 0 else None
            hopper.kernel(
                source, mine(w), None, mine(product).at[chunk], config=self.config, pipeline_callback=callback
            )


class _Scatter(_Port):
    """Multiplies a chunk straight into the slot of the rank that sums it."""

    notifiers = COMPUTE_WARPGROUPS  # each writes its own tile of the product

    def __init__(self, peers, config, counters, x, w, partials) -> None:
        super().__init__(peers, config, counters)
        self.x, self.w, self.partials = x, w, partials

    def multiply(self, step: protocol.ProtocolStep, chunk: Any, target: Any, slot: Any) -> None:
        mine = self.peers.mine
        partials = self.peers.peer(self.partials, target) if step.target else mine(self.partials)
        hopper.kernel(mine(self.x).at[chunk], mine(self.w), None, partials.at[slot], config=self.config)


def copy_tile(
    row: Any, column: Any, k: Any, x_tile: Any, w_tile: Any, *, config: hopper.TuningConfig, copies: list[Any]
) -> None:
    """Copies the tile of x that is being multiplied, once: in the first column of tiles, by the first warpgroup.

    Called between the start of the tile's wgmma and its end. Returns after the copies have read the tile, since the
    matmul releases its memory next.
    """
    del w_tile
    block_rows = config.tile_m * (2 if config.wg_dimension == hopper.MatmulDimension.M else 1)

    @pl.when((lax.axis_index("wg") == 0) & (column == 0))
    def _():
        part = (pl.ds(row * block_rows, block_rows), pl.ds(k * config.tile_k, config.tile_k))
        for copy in copies:
            plgpu.copy_smem_to_gmem(x_tile, copy.at[part])
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)


@plgpu.inline_mgpu()
def _fence_async_proxy(context: Any) -> None:
    """Orders the wait before the loads of tiles that follow, which take another path (the async proxy)."""
    del context
    nvvm.fence_proxy(nvvm.ProxyKind.async_)


def _config(chosen: WarpgroupTiles | None) -> hopper.TuningConfig:
    assert chosen is not None  # `unsupported_shape_reason` was asked before
    along = hopper.MatmulDimension.N if chosen.columns_split else hopper.MatmulDimension.M
    return hopper.TuningConfig(chosen.rows, chosen.columns, TILE_DEPTH, PIPELINE_DEPTH, wg_dimension=along)


def _check(rows: int, depth: int, widths: list[int], operands: list[jax.Array]) -> None:
    for operand in operands:
        if reason := unsupported_shape_reason(rows, depth, widths, operand.dtype):
            raise NotImplementedError(reason)


def _remote(axes: tuple[str, ...]) -> RemotePeers:
    mesh = jax.sharding.get_abstract_mesh()
    if automatic := sorted(set(mesh.axis_names) - set(mesh.manual_axes)):
        raise NotImplementedError(automatic_axes_reason(automatic))
    peers = RemotePeers(axes, tuple(mesh.shape[axis] for axis in axes))
    if peers.ranks == 1:
        raise NotImplementedError(one_rank_reason(axes))  # the compiler would abort
    return peers


def _varying(results: Any, arguments: Any, axes: tuple[str, ...]) -> Any:
    """Marks a kernel's outputs, returned without varying axes, with the axes of its arguments and of its exchange."""
    varying = set(axes).union(*(varying_axes(leaf) for leaf in jax.tree.leaves(arguments)))
    return make_varying(results, tuple(sorted(varying)))


def _sum(partials: jax.Array, axis: int) -> jax.Array:
    return jnp.sum(partials, axis=axis, dtype=jnp.float32).astype(partials.dtype)
