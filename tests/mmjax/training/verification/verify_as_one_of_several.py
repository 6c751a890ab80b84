"""One of several processes that verify layouts together; run by test_several_processes.

Each report goes to a file. The layouts lie on the devices of all processes, or of some; the last one has a fault in one
process alone.
"""

import dataclasses
import functools
import json
import pathlib
import sys

import jax

from mmjax.training.engine.engine import Engine
from mmjax.training.verification import comparison
from mmjax.training.verification.comparison import verify_layouts
from mmjax.training.verification.layout_results import prepare_processes
from mmjax.training.verification.layouts.layout_kinds import NamedLayout
from sharding.plans.plan import Plan, single_device_plan
from sharding.specs.modules import module_graph
from tests.unit_plans import module_unit
from tests.verified_run import MODEL, run_small_reference

FAULTY = "replicas of process 1 drift"


def layouts() -> list[NamedLayout]:
    """Of 2 devices in each of 3 processes: all of them, one device of the first, those of the last two."""
    spread = Plan(
        (
            module_unit("vision", (4, 5), layers=(2,), phase_rows=2, dp=2),  # sends to other processes by items
            module_unit("backbone", (0, 3, 1, 2), layers=(1, 2), dp=2),
        ),
        microbatches=3,
    )
    last = Plan(
        (
            module_unit("vision", (2,), layers=(2,)),
            module_unit("backbone", (3, 4), layers=(3,), tp=2),
        ),
        microbatches=2,
    )
    one = dataclasses.replace(single_device_plan(module_graph(MODEL)), microbatches=2)
    plans = {"spread": spread, "one device": one, FAULTY: last}
    return [NamedLayout(name, plan) for name, plan in plans.items()]


def prepare_with_fault(engine: Engine | None) -> None:
    """What runs before a layout is compared; in process 1 its shards of the updated parameters are wrong then."""
    prepare_processes(engine)
    if engine and jax.process_index() == 1:
        stages = engine.executor.stages
        wrong = functools.partial(_with_other_shards, stages["backbone", 0].update)
        stages["backbone", 0] = dataclasses.replace(stages["backbone", 0], update=wrong)


def _with_other_shards(update, *arguments):
    masters, states = update(*arguments)
    return jax.tree.map(_other_shards, masters), states


def _other_shards(array: jax.Array) -> jax.Array:
    shards = [shard.data * 1.001 for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)


def main(rank: int, port: str, processes: int, folder: pathlib.Path) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=processes, process_id=rank)
    reference = run_small_reference()
    *right, faulty = layouts()
    reports = list(verify_layouts(MODEL, right, reference))
    comparison.prepare_processes = prepare_with_fault
    reports += verify_layouts(MODEL, [faulty], reference)
    (folder / f"{rank}.json").write_text(json.dumps([report.to_json() for report in reports]))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4]))
