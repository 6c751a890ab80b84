"""Requests beyond what a configuration needs are refused before anything is parsed, planned or allocated for them."""

import dataclasses
import itertools
import json
import tracemalloc

import pyarrow.flight as flight
import pytest

from data.errors import DataError
from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import DealtPhases, plan_phase_rows
from data.packing.phases.needed_rows import NeededRows
from data.packing.pipeline import training_pipeline
from data.packing.row_order import RowOrderRequest
from data.packing.rows.row_planner import PlannerState
from data.producers.request_bounds import RequestBounds
from data.producers.step_request import StepRequest, batch_fingerprint
from sharding.plans.plan import Plan, single_device_plan
from sharding.specs.modules import module_graph
from tests.data.packing.test_planned_phases import NEEDED, PHASES
from tests.producers import CONFIG, MODEL, serving
from tests.small_vqa import SmallVQA
from tests.unit_plans import module_unit

PIPELINE = training_pipeline(CONFIG, MODEL, SmallVQA("train"))
BOUNDS = RequestBounds.of(PIPELINE, CONFIG)
REQUEST = StepRequest(batch_fingerprint(PIPELINE, CONFIG), PlannerState(), 0, phases=PHASES)
VISION, GENERATOR = PHASES.phases["vision"], PHASES.phases["generator"]


def with_phase(phase, **changes):
    """The request with other rows of a phase."""
    phases = {phase.module: dataclasses.replace(phase, **changes)}
    return dataclasses.replace(REQUEST, phases=dataclasses.replace(PHASES, phases=phases))


def with_plan(**changes):
    plan = dataclasses.replace(single_device_plan(module_graph(MODEL), 2), **changes)
    return dataclasses.replace(REQUEST, row_order=RowOrderRequest(plan, "h100", ("all",), "search"))


def without_types(request, **changes):
    """The bytes of a request whose phase has values of types that no object here may have."""
    fields = json.loads(request.to_bytes())
    (phase,) = fields["phases"]["phases"]
    assert phase.keys() >= changes.keys()
    phase |= changes
    return json.dumps(fields).encode()


BEYOND_TYPED = {
    "10,000 rows": with_phase(VISION, rows=10_000),
    "more rows than 64 times the microbatch's": with_phase(VISION, rows=129, capacities=(1,)),
    "a row of more slots than 16 times the microbatch's": with_phase(VISION, rows=1, capacities=(2, 1025)),
    "rows of more slots than 16 times the microbatch's": with_phase(VISION, rows=33, capacities=(32,)),
    "huge capacities": with_phase(VISION, capacities=(2**60,)),
    "many rows of a generator": with_phase(GENERATOR, rows=10_000),
    "other slots": with_phase(VISION, slots=2**40),
    "other values of a slot": with_phase(VISION, values_per_slot=2**40),
    "nodes that divide no rows": with_phase(VISION, nodes=2**40),
    "another square weight": with_phase(VISION, quadratic_cost_weight=1e300),
    "an encoder as a generator": with_phase(VISION, is_generator=True),
    "a unit that is no name": with_phase(VISION, unit="x" * 101),
    "microbatches of no row": dataclasses.replace(REQUEST, phases=DealtPhases({}, 10**9)),
    "a window before its position": dataclasses.replace(REQUEST, planner_state=PlannerState(5, 6)),
    "steps of no window": dataclasses.replace(REQUEST, planner_state=PlannerState(0, 0, 10**6)),
    "more carried samples than a step has": dataclasses.replace(
        REQUEST, planner_state=PlannerState(9, 1, 0, (1,) * 500)
    ),
    "a row repeated": dataclasses.replace(REQUEST, needed=NeededRows((1, 1))),
    "rows that do not ascend": dataclasses.replace(REQUEST, needed=NeededRows(None, {"vision": (4, 1)})),
    "a row of no step": dataclasses.replace(REQUEST, needed=NeededRows((2**62,))),
    "a plan of microbatches of no row": with_plan(microbatches=16_384),
    "a plan of 4 million rows": with_plan(
        units=(module_unit("vision", (0,), phase_rows=2**22), module_unit("backbone", (1,)))
    ),
}
BEYOND = {situation: request.to_bytes() for situation, request in BEYOND_TYPED.items()}
BEYOND["a unit that is no text"] = without_types(with_phase(VISION), unit=[1])


@pytest.mark.parametrize("situation", BEYOND)
def test_a_request_beyond_the_configuration_is_refused(situation):
    tracemalloc.start()
    with pytest.raises(DataError) as caught:
        BOUNDS.check(StepRequest.from_bytes(BEYOND[situation]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20 and len(str(caught.value)) < 300


def test_what_trainers_of_the_configuration_send_is_accepted():
    """Plans with as many rows as there are replicas, or few large ones, of steps in 1, 2 and 4 microbatches."""
    batch = global_batch_spec(CONFIG, MODEL).arrays
    accepted = 0
    for microbatches, rows in itertools.product((1, 2, 4), (1, 2, 3, 8, 16)):
        units = (
            module_unit("vision", range(rows), layers=(2,), phase_rows=rows, dp=rows),
            module_unit("generator", range(rows, 2 * rows), phase_rows=rows, dp=rows),
            module_unit("backbone", (2 * rows,)),
        )
        phases = plan_phase_rows(Plan(units, microbatches), MODEL, batch)
        BOUNDS.check(dataclasses.replace(REQUEST, phases=phases))
        accepted += 1
    assert accepted == 15
    BOUNDS.check(dataclasses.replace(REQUEST, needed=NEEDED))
    BOUNDS.check(with_plan())
    for plan, _ in zip(PIPELINE.steps(PlannerState()), range(40), strict=False):
        BOUNDS.check(dataclasses.replace(REQUEST, planner_state=plan.state_after))


def test_the_bounds_follow_the_configuration():
    config = dataclasses.replace(CONFIG, rows=8, quadratic_cost_weights=(("patches", 0.5),))
    bounds = RequestBounds.of(training_pipeline(config, MODEL, SmallVQA("train")), config)
    with pytest.raises(DataError, match="another quadratic_cost_weight than"):
        bounds.check(with_phase(VISION, capacities=(32,)))
    bounds.check(with_phase(VISION, quadratic_cost_weight=0.5, rows=64, capacities=(32,)))
    with pytest.raises(DataError, match="a microbatch of 'vision' has 2080 slots, of at most 2048"):
        bounds.check(with_phase(VISION, quadratic_cost_weight=0.5, rows=65, capacities=(32,)))


def test_a_large_ticket_is_refused_before_it_is_parsed():
    request = REQUEST.to_bytes()
    with serving() as (_, address), flight.FlightClient(f"grpc://{address}") as client:
        for ticket in (request + b" " * BOUNDS.ticket_bytes, b"[" * (BOUNDS.ticket_bytes + 1)):
            with pytest.raises(
                flight.FlightServerError, match=f"has {len(ticket)} bytes, more than {BOUNDS.ticket_bytes}"
            ):
                client.do_get(flight.Ticket(ticket))
        padded = request + b" " * (BOUNDS.ticket_bytes - len(request))
        assert client.do_get(flight.Ticket(padded)).read_all().num_rows > 0
    assert len(request) < BOUNDS.ticket_bytes < 2 << 20


def test_a_request_beyond_the_configuration_leaves_the_producer_serving():
    with serving() as (_, address), flight.FlightClient(f"grpc://{address}") as client:
        for request in BEYOND.values():
            with pytest.raises(flight.FlightServerError):
                client.do_get(flight.Ticket(request))
        assert client.do_get(flight.Ticket(REQUEST.to_bytes())).read_all().num_rows > 0
