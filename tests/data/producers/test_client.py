"""Batches of producers equal those made in this process, even if a producer is killed; real processes."""

import dataclasses
import itertools
import json
import threading

import numpy as np
import pyarrow.flight as flight
import pytest

from configs.common.errors import UserError
from data.errors import DataError, HostError
from data.packing.batch_requirements import BatchRequirements
from data.packing.dealt_phases import DealtPhases
from data.packing.phases.item_tables import PhaseCapacityError
from data.packing.phases.needed_rows import NeededRows
from data.packing.pipeline import training_batches, training_pipeline
from data.packing.row_order import RowOrderRequest
from data.packing.rows.row_planner import PlannerState, StepPlan
from data.producers import client
from data.producers.client import remote_batches
from data.producers.connection import TOKEN_VARIABLE
from data.producers.server import _refusal
from data.producers.step_request import STATUS_ACTION
from data.samples.sample_format import SampleFormat
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from tests.data.packing.test_planned_phases import NEEDED, PHASES
from tests.producers import CONFIG, GIN, MODEL, address_of, end, running, serving, start_producer
from tests.profiles import synthetic_profile
from tests.small_vqa import SmallVQA

COUNT = 34


@pytest.fixture(scope="module")
def gin(tmp_path_factory):
    path = tmp_path_factory.mktemp("service") / "run.gin"
    path.write_text(GIN)
    return path


@pytest.fixture(scope="module")
def pair(gin):
    """Two producers, [process, address] each; a test that ends one replaces it."""
    with running(gin, count=2) as producers:
        replaceable = [list(producer) for producer in producers]
        yield replaceable
        for process, _ in replaceable:
            end(process)


@pytest.fixture(scope="module")
def source():
    return SmallVQA("train")


@pytest.fixture(scope="module")
def expected(source):
    """The first batches, made here, and the state behind each."""
    batches = training_batches(CONFIG, MODEL, source)
    states, made = [batches.get_state()], []
    for _ in range(COUNT):
        made.append(next(batches))
        states.append(json.loads(json.dumps(batches.get_state())))
    batches.close()
    return made, states


@pytest.fixture
def remote(source):
    """Makes remote batches, which are closed in the end."""
    made = []

    def make(*addresses, config=CONFIG, **others):
        made.append(remote_batches(config, MODEL, source, addresses, **others))
        return made[-1]

    yield make
    for batches in made:
        batches.close()


def assert_same(batch, other):
    assert batch.arrays.keys() == other.arrays.keys()
    for module, fields in batch.arrays.items():
        assert fields.keys() == other.arrays[module].keys()
        for name, array in fields.items():
            assert array.dtype == other.arrays[module][name].dtype
            np.testing.assert_array_equal(array, other.arrays[module][name], err_msg=f"{module} {name}")
    np.testing.assert_array_equal(batch.sample_ids, other.sample_ids)
    for name in ("real_and_capacity", "targets", "state", "refused"):
        assert getattr(batch, name) == getattr(other, name)


def served(address):
    with flight.FlightClient(f"grpc://{address}") as client:
        (answer,) = client.do_action(STATUS_ACTION)
        return json.loads(answer.body.to_pybytes())["served"]


@pytest.mark.processes
def test_two_producers_make_the_same_batches(pair, remote, expected):
    made, states = expected
    addresses = [address for _, address in pair]
    before = [served(address) for address in addresses]
    batches = remote(*addresses)
    for number, batch in enumerate(made):
        assert_same(batch, next(batches))
        assert batches.get_state() == states[number + 1]
    batches.close()
    # Every second step each, and no more than may be under way at once.
    counts = [served(address) - start for address, start in zip(addresses, before, strict=True)]
    assert all(COUNT / 2 <= count <= COUNT / 2 + CONFIG.prefetch for count in counts), counts


@pytest.mark.processes
def test_states_are_interchangeable_with_and_without_producers(pair, remote, source, expected):
    made, states = expected
    batches = remote(*(address for _, address in pair))
    batches.set_state(states[7])
    for batch in made[7:12]:
        assert_same(batch, next(batches))
    batches.set_state(states[2])
    assert_same(made[2], next(batches))
    here = training_batches(CONFIG, MODEL, source)
    here.set_state(json.loads(json.dumps(batches.get_state())))
    assert_same(made[3], next(here))
    here.close()


@pytest.mark.processes
def test_a_killed_producer_loses_nothing_and_is_used_again_when_it_returns(pair, remote, source, gin, monkeypatch):
    monkeypatch.setattr(client, "MAX_PROBE_INTERVAL", 0.2)
    here = training_batches(CONFIG, MODEL, source)
    (first, address), (_, other) = pair
    batches = remote(address, other)
    for _ in range(5):
        assert_same(next(here), next(batches))
    end(first)
    handed_over = served(other)
    for _ in range(12):
        assert_same(next(here), next(batches))
    assert served(other) - handed_over >= 12 - 2 * CONFIG.prefetch
    pair[0][0] = start_producer(gin, f"--port={address.split(':')[1]}")
    assert address_of(pair[0][0]) == address
    while served(address) < 3:
        assert_same(next(here), next(batches))
    assert batches.get_state() == here.get_state()
    here.close()


def test_a_producer_that_returns_within_the_timeout_is_waited_for(remote, expected):
    made, _ = expected
    with serving() as (_, address):
        batches = remote(address)
        assert_same(made[0], next(batches))
    port = int(address.split(":")[1])
    back = threading.Event()

    def return_later():
        with serving(port=port):
            back.wait(60)

    thread = threading.Thread(target=return_later)
    thread.start()
    for batch in made[1:6]:
        assert_same(batch, next(batches))
    batches.close()
    back.set()
    thread.join()


def test_producers_make_only_requested_steps(remote):
    with serving() as (producer, address):
        batches = remote(address, config=dataclasses.replace(CONFIG, prefetch=1))
        for taken in range(1, 5):
            next(batches)
            assert served(address) <= taken + 1
        batches.close()


@pytest.mark.parametrize("is_profiled", [False, True])
def test_producers_order_rows_as_in_this_process(remote, source, is_profiled):
    graph = module_graph(MODEL)
    units = tuple(
        UnitPlan(module.name, (module.name,), (number,), layers=(module.layer_count,))
        for number, module in enumerate(graph.modules)
    )
    profile = synthetic_profile(graph, "cpu") if is_profiled else None
    order = RowOrderRequest(Plan(units, 4), "h100", ("all",), "search", profile)
    here = training_batches(
        CONFIG, MODEL, source, order.make_row_order(MODEL, SampleFormat.for_model(MODEL, CONFIG.encoder_capacities))
    )
    with serving() as (_, address):
        there, plain = remote(address, row_order=order), remote(address)
        moved = 0
        for _ in range(4):
            batch = next(there)
            assert_same(next(here), batch)
            moved += not np.array_equal(next(plain).sample_ids, batch.sample_ids)
        for batches in (there, plain, here):
            batches.close()
    assert moved


@pytest.mark.processes
def test_producers_make_only_requested_rows(pair, remote, source):
    here = training_batches(CONFIG, MODEL, source, requirements=BatchRequirements(NeededRows((1, 2))))
    there = remote(*(address for _, address in pair), requirements=BatchRequirements(NeededRows((1, 2))))
    for _ in range(3):
        batch = next(there)
        assert_same(next(here), batch)
        tokens = batch.arrays["backbone"]["tokens"]
        assert tokens[1:3].any() and not tokens[[0, 3]].any()
    here.close()


@pytest.mark.processes
def test_producers_deal_items_and_send_only_the_rows_that_are_needed(pair, remote, source):
    here = training_batches(CONFIG, MODEL, source, requirements=BatchRequirements(NEEDED, PHASES))
    there = remote(*(address for _, address in pair), requirements=BatchRequirements(NEEDED, PHASES))
    for _ in range(3):
        batch = next(there)
        assert_same(next(here), batch)
        assert PHASES.digest(batch.arrays) and batch.arrays["vision"]["segments"][[1, 4]].any()
    here.close()


@pytest.mark.processes
def test_items_that_do_not_fit_are_refused_by_the_producer(pair, remote):
    vision = dataclasses.replace(PHASES.phases["vision"], capacities=(1,))
    phases = dataclasses.replace(PHASES, phases={"vision": vision})
    batches = remote(pair[1][1], requirements=BatchRequirements(phases=phases))
    with pytest.raises(
        PhaseCapacityError,
        match=r"microbatch 0 of unit vision: an item of vision has 64 patches, and one of its rows holds 4; .* \(64\)",
    ):
        next(batches)


def is_refused(phases: DealtPhases, plan: StepPlan) -> bool:
    try:
        phases.plan(plan.rows, plan.sizes)
    except PhaseCapacityError:
        return True
    return False


@pytest.mark.processes
def test_steps_before_one_that_is_refused_arrive(pair, remote, expected, source):
    """The images of few steps fit into rows of 112 patches: one that does comes before one that does not."""
    made, states = expected
    vision = dataclasses.replace(PHASES.phases["vision"], capacities=(28,))
    phases = dataclasses.replace(PHASES, phases={"vision": vision})
    steps = training_pipeline(CONFIG, MODEL, source).steps(PlannerState())
    refused = [is_refused(phases, plan) for plan, _ in zip(steps, range(COUNT), strict=False)]
    last = next(step for step, both in enumerate(itertools.pairwise(refused)) if both == (False, True))
    batches = remote(*(address for _, address in pair), requirements=BatchRequirements(phases=phases))
    batches.set_state(states[last])
    np.testing.assert_array_equal(next(batches).sample_ids, made[last].sample_ids)
    for _ in range(2):
        with pytest.raises(PhaseCapacityError, match="microbatch . of unit vision"):
            next(batches)
        assert batches.get_state() == states[last + 1]


def test_other_configurations_are_refused_and_the_log_of_the_producer_has_the_difference(remote, caplog):
    for config, difference in (({"seed": 4}, "seed 4 -> 3"), ({"rows": 8}, "rows 8 -> 4")):
        with serving() as (_, address):
            batches = remote(address, config=dataclasses.replace(CONFIG, **config))
            with pytest.raises(DataError, match=f"{address}: the trainer has another data configuration") as caught:
                next(batches)
            batches.close()
        assert difference in caplog.text and "->" not in str(caught.value)


def test_the_token_comes_from_the_environment(remote, expected, monkeypatch):
    with serving("secret") as (_, address):
        for token in ("", "guess"):
            monkeypatch.setenv(TOKEN_VARIABLE, token)
            with pytest.raises(DataError, match=TOKEN_VARIABLE):
                next(remote(address))
        monkeypatch.setenv(TOKEN_VARIABLE, "secret")
        batches = remote(address)
        assert_same(expected[0][0], next(batches))
        batches.close()


def test_the_error_names_all_unavailable_producers(remote, caplog):
    with serving() as (_, one), serving() as (_, two):
        pass
    with pytest.raises(DataError, match=f"0.3 s: {one} .*{two} .*resume"):
        next(remote(one, two, timeout=0.3))
    assert "no producer answers" in caplog.text


class Breaking(flight.FlightServerBase):
    """Says that it is there, and breaks every step off."""

    def do_action(self, context, action):
        return iter([flight.Result(b"{}")])

    def do_get(self, context, ticket):
        raise flight.FlightUnavailableError("broken off")


def test_a_step_that_ends_every_producer_is_an_error(remote, monkeypatch):
    monkeypatch.setattr(client, "MIN_PROBE_INTERVAL", 0.01)
    with Breaking("grpc://127.0.0.1:0") as server, pytest.raises(DataError, match="5 times, .* step 0 after"):
        next(remote(f"127.0.0.1:{server.port}", config=dataclasses.replace(CONFIG, prefetch=1)))


class OutOfDescriptors(Breaking):
    """Cannot open the files of any sample."""

    def do_get(self, context, ticket):
        error = HostError("picture.png", "Too many open files")
        raise _refusal(str(error), type(error))


def test_a_step_that_no_host_of_a_producer_can_make_is_an_error(remote, monkeypatch):
    monkeypatch.setattr(client, "MIN_PROBE_INTERVAL", 0.01)
    one_ahead = dataclasses.replace(CONFIG, prefetch=1)
    said = r"5 times, .*picture\.png: Too many open files.* step 0 after"
    with OutOfDescriptors("grpc://127.0.0.1:0") as faulty, pytest.raises(DataError, match=said):
        next(remote(f"127.0.0.1:{faulty.port}", config=one_ahead))


class Faulty(OutOfDescriptors):
    """Says when it failed as often as ends a run that leaves a step to it."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.failures, self.failed_often = 0, threading.Event()

    def do_get(self, context, ticket):
        self.failures += 1
        if self.failures == 2 + client.EXTRA_ATTEMPTS:
            self.failed_often.set()
        return super().do_get(context, ticket)


class Slow(flight.FlightServerBase):
    """Passes requests on to another producer, and gives a faulty one time to fail often before the first."""

    def __init__(self, address: str, faulty: Faulty) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._client, self._faulty, self._patience = flight.FlightClient(f"grpc://{address}"), faulty, 0.5

    def do_get(self, context, ticket):
        self._faulty.failed_often.wait(self._patience)
        self._patience = 0.0
        return flight.RecordBatchStream(self._client.do_get(ticket).read_all())


def test_a_step_of_a_producer_whose_host_fails_is_made_by_one_that_is_slow(remote, expected, monkeypatch):
    """The faulty producer answers every probe, and could fail again each time while the other makes a step."""
    for name in ("MIN_PROBE_INTERVAL", "MAX_PROBE_INTERVAL"):
        monkeypatch.setattr(client, name, 0.001)
    one_ahead = dataclasses.replace(CONFIG, prefetch=1)
    with serving() as (_, address), Faulty() as faulty, Slow(address, faulty) as slow:
        batches = remote(f"127.0.0.1:{faulty.port}", f"127.0.0.1:{slow.port}", config=one_ahead)
        for made in expected[0][:3]:
            assert_same(made, next(batches))
        batches.close()
        assert 1 <= faulty.failures <= 3, "a step is left to the other after it broke off once"


@pytest.mark.parametrize(
    ("addresses", "timeout", "words"),
    [
        ((), 1.0, "none; name each once"),
        (("host:1", "host:1"), 1.0, "name each once"),
        (("host",), 1.0, "host:port"),
        (("http://host:1",), 1.0, "host:port"),
        (("host:1/path",), 1.0, "host:port"),
        (("host:1",), 0.0, "timeout of producers"),
        (("host:1",), float("inf"), "timeout of producers"),
    ],
)
def test_invalid_addresses_and_timeouts_are_refused_at_once(remote, addresses, timeout, words):
    with pytest.raises(UserError, match=words):
        remote(*addresses, timeout=timeout)
