"""A plugin of pytest that injects a fault into mmjax before the tests run: `-p tests.faults.plugin --inject=NAME`."""

from collections.abc import Callable
from typing import Any

import pytest


def _into_engines(make: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Injects the fault that `make(plan)` returns, if any, into every engine that is built."""

    def inject(patch: pytest.MonkeyPatch) -> None:
        from mmjax.training.engine.engine import Engine

        build = Engine.__init__

        def faulty(engine, *arguments, **named):
            build(engine, *arguments, **named)
            if fault := make(engine.plan):
                fault(engine, patch)

        patch.setattr(Engine, "__init__", faulty)

    return inject


def _missing_sum(plan):
    from tests.faults.engine_faults import first_replica_only, stage_function

    for unit in plan.units:
        if unit.parallelism.dp > 1 and unit.parallelism.tp * unit.parallelism.fsdp == 1:
            return stage_function((unit.name, 0), "reduce", first_replica_only)
    return None


def _swapped_microbatches(plan):
    from tests.faults.engine_faults import next_microbatch, stage_programs

    change = next_microbatch(plan.microbatches)
    return stage_programs((plan.units[0].name, 0), forward=change, backward=change)


def _dropped_microbatch(plan):
    from tests.faults.engine_faults import stage_programs, without_last_microbatch

    return stage_programs((plan.units[-1].name, 0), backward=without_last_microbatch(plan.microbatches))


def _wrong_normaliser(plan):
    from tests.faults.engine_faults import larger_weights

    return larger_weights


def _scaled_hop(plan):
    from tests.faults.engine_faults import scaled_hop

    return scaled_hop("vision>backbone", "activation_hop") if len(plan.units) > 1 else None


def _lost_sample(patch: pytest.MonkeyPatch) -> None:
    """Batches that go on from a state lack a sample: one that was carried over, or the next of the stream."""
    from data.packing.batch_iterator import BatchIterator

    restore = BatchIterator.set_state

    def lossy(batches, state):
        planner = dict(state["planner"])
        if planner["carried_samples"]:
            planner["carried_samples"] = planner["carried_samples"][1:]
        else:
            planner["window_start"] += 1
        restore(batches, {**state, "planner": planner})

    patch.setattr(BatchIterator, "set_state", lossy)


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "missing-sum-over-replicas": _into_engines(_missing_sum),
    "swapped-microbatches": _into_engines(_swapped_microbatches),
    "dropped-last-microbatch": _into_engines(_dropped_microbatch),
    "normaliser-off-by-5e-4": _into_engines(_wrong_normaliser),
    "hop-scaled-by-1.01": _into_engines(_scaled_hop),
    "lost-sample-on-resume": _lost_sample,
}
"""By name, what injects a fault until the session ends."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--inject", choices=sorted(FAULTS), required=True, help="the fault to inject")


def pytest_sessionstart(session: pytest.Session) -> None:
    """The package is imported here, after `conftest.py` has told jax how many devices there are."""
    FAULTS[session.config.getoption("inject")](pytest.MonkeyPatch())
