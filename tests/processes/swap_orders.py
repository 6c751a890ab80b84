"""One of two processes that swap the order of ops together, and keep it where they do not agree on another.

What swaps there were, the losses and states with and without, and what was said go to a file.
"""

import dataclasses
import logging
import pathlib
import pickle
import sys
from typing import Any

import jax
import pytest

from mmjax.training.rescheduling.rescheduler import Rescheduler, ReschedulingError
from mmjax.training.rescheduling.settings import Rescheduling
from mmjax.training.trainer import Trainer
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.named.registry import register_schedule
from sharding.schedules.one_f_one_b import gpipe, gpipe_in_flight, one_f_one_b
from sharding.schedules.ops import OpGraph, Schedule
from tests.mmjax.training.trainer_runs import CONFIG as RUN
from tests.mmjax.training.trainer_runs import Recorder
from tests.sharding.schedules.one_by_one import one_by_one

PLAN = Plan(
    (
        UnitPlan("vision", ("vision",), (0,)),
        UnitPlan("backbone", ("backbone",), (1, 2), layers=(1, 1), recompute=("none", "none")),
        UnitPlan("generator", ("generator",), (3,)),
    ),
    microbatches=4,
    schedule="one by one",
)
CONFIG = dataclasses.replace(RUN, steps=5)
SETTINGS = Rescheduling(interval=2, tolerance=0.0)


def agreeing(op_graph: OpGraph) -> Schedule:
    """1F1B, in all processes."""
    return one_f_one_b(op_graph)


def disagreeing(op_graph: OpGraph) -> Schedule:
    """Another order in the second process."""
    return gpipe(op_graph) if jax.process_index() else one_f_one_b(op_graph)


def failing(op_graph: OpGraph) -> Schedule:
    """None in the second process."""
    if jax.process_index():
        raise ZeroDivisionError("of this test")
    return one_f_one_b(op_graph)


def main(rank: int, port: str, directory: pathlib.Path) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("mmjax.training.rescheduling").addHandler(handler)

    def order(op_graph: OpGraph, _: object) -> Schedule:
        return (when_measured if op_graph.seconds else one_by_one)(op_graph)

    when_measured = agreeing
    register_schedule(PLAN.schedule, order, gpipe_in_flight)
    seen: dict[str, Any] = {"without": train(CONFIG), "with": train(dataclasses.replace(CONFIG, rescheduling=SETTINGS))}
    with Trainer(CONFIG, PLAN) as trainer:
        engine = trainer.engine
        trainer.engine.set_schedule(initial := one_by_one(engine.schedule.op_graph))
        trainer.step()
        timeline = trainer.timeline()
        with Rescheduler(engine, SETTINGS, 0, 60.0) as rescheduler:
            when_measured = disagreeing
            rescheduler.reconsider(2, timeline)
            seen["disagreeing"] = (rescheduler.swap(3), engine.schedule is initial)
            when_measured = failing
            rescheduler.reconsider(4, timeline)
            with pytest.raises(ReschedulingError) as refusal:
                rescheduler.swap(5)
        seen["failing"] = str(refusal.value)
        trainer.step()
    (directory / f"{rank}.pickle").write_bytes(pickle.dumps(seen | {"said": said}))
    jax.distributed.shutdown()


def train(config):
    """Swaps, losses, and the steps that were trained, from the order of the plan."""
    recorder = Recorder()
    with Trainer(config, PLAN) as trainer:
        trainer.engine.set_schedule(one_by_one(dataclasses.replace(trainer.engine.schedule.op_graph, seconds={})))
        result = trainer.fit(recorder)
        return result.order_swaps, recorder.losses, trainer.engine.schedule.ops


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]))
