"""One of two processes, with 3 and 2 devices, that send arrays to each other (`test_hops_between_processes.py`)."""

import sys

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.runtime.hops import PermuteHop, make_hop
from tests.sharding.runtime.submeshes import stage_mesh


def main(rank: int, port: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    near, far = ([d for d in jax.devices() if d.process_index == process] for process in (0, 1))
    assert (len(near), len(far)) == (3, 2)
    bits = np.random.default_rng(0).integers(0, 2**32, (12, 4, 2), np.uint32).view(np.float32)
    both = (near[0], far[0])
    meshes = {"three": stage_mesh(near, 3, 1), "two": stage_mesh(far, 2, 1), "wide": stage_mesh(far, 1, 2)}
    meshes["across"] = stage_mesh(both, 2, 1)
    cases = [
        (bits, "three", P("data"), "two", P("data")),
        (bits, "three", P("data"), "wide", P(None, "tensor")),
        (bits, "three", P(None, None), "across", P("data")),
        (bits[:1, 0, 0], "three", P(), "two", P()),
        (np.asarray(bits[0, 0, 0]), "three", P(), "across", P()),
    ]
    for array, source_mesh, source_spec, target_mesh, target_spec in cases:
        source = NamedSharding(meshes[source_mesh], source_spec)
        target = NamedSharding(meshes[target_mesh], target_spec)
        there = make_hop(source, target, array.shape, array.dtype)
        back = make_hop(target, source, array.shape, array.dtype)
        assert isinstance(there, PermuteHop) and isinstance(back, PermuteHop)
        sent = jax.make_array_from_callback(array.shape, source, array.__getitem__) if rank == 0 else None
        for _ in range(2):
            arrived = there(sent)
            returned = back(arrived)
            for held in (arrived, returned):
                for shard in held.addressable_shards:
                    np.testing.assert_array_equal(
                        np.asarray(shard.data).view(np.uint32), array[shard.index].view(np.uint32)
                    )
        print("equal", len(arrived.addressable_shards), len(returned.addressable_shards), flush=True)
    # Of what lies in the other process alone, this one gets None.
    mine, others = (near, far) if rank == 0 else (far, near)
    ends = NamedSharding(stage_mesh(others[:1], 1, 1), P()), NamedSharding(stage_mesh(others[1:2], 1, 1), P())
    assert make_hop(*ends, (4,), np.float32)(None) is None
    try:
        make_hop(NamedSharding(stage_mesh(mine[:1], 1, 1), P()), ends[0], (4,), np.float32, "device_put")
    except ValueError as error:
        print("refused", 'use the transport "ppermute"' in str(error), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
