"""Step requests are decoded as they were sent, and everything else is refused."""

import dataclasses
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from configs.architectures import ModelConfig, VisionConfig
from configs.clusters import CLUSTERS
from configs.common.errors import UserError
from data.data_config import DataConfig
from data.packing.dealt_phases import DealtPhases
from data.packing.fingerprint import fingerprint_differences
from data.packing.phases.needed_rows import NeededRows
from data.packing.pipeline import training_pipeline
from data.packing.row_order import MAX_PROFILE_BYTES, RowOrderRequest
from data.packing.rows.row_planner import PlannerState
from data.producers.step_request import MAX_STEPS_AHEAD, StepRequest, batch_fingerprint
from sharding.plans.plan import single_device_plan
from sharding.plans.plan_purpose import PlanPurpose
from sharding.specs.modules import module_graph
from tests.data.packing.planned_rows import vision_rows
from tests.producers import CONFIG, MODEL
from tests.profiles import synthetic_profile
from tests.small_vqa import SmallVQA

ORDER = RowOrderRequest(single_device_plan(module_graph(MODEL), 2), "h100", ("all",), "search")
PROFILED = dataclasses.replace(ORDER, rendezvous=True, profile=synthetic_profile(module_graph(MODEL), "toy", tps=(1,)))
DESCRIBED = dataclasses.replace(
    ORDER,
    cluster="toy",
    plan=dataclasses.replace(
        ORDER.plan,
        made_for=PlanPurpose(cluster="toy", described_cluster=dataclasses.replace(CLUSTERS["h100"], name="toy")),
    ),
)
NUMBERS = st.integers(0, 2**60)
VISION_ROWS = dataclasses.replace(vision_rows(rows=3, slots=8, capacities=(2, 4)), unit="encoder")
PHASES = DealtPhases({"vision": VISION_ROWS}, 2)


@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.tuples(NUMBERS, NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=5).map(tuple)),
    st.integers(0, MAX_STEPS_AHEAD),
    st.sampled_from([None, ORDER, PROFILED, DESCRIBED]),
    st.none() | st.lists(NUMBERS, max_size=3).map(tuple),
    st.sampled_from([DealtPhases(), PHASES]),
)
def test_requests_are_decoded_unchanged(place, skip, order, rows, phases):
    needed = NeededRows(rows, dict.fromkeys(phases.phases, rows or ()))
    request = StepRequest({"seed": 3, "mixture": [["vqa", 1.0]]}, PlannerState(*place), skip, order, needed, phases)
    assert StepRequest.from_bytes(request.to_bytes()) == request


GOOD = {
    "fingerprint": {},
    "planner_state": {"window_start": 0, "window_number": 0, "steps_taken": 0, "carried_samples": []},
    "skip": 0,
    "row_order": None,
    "needed": NeededRows().to_json(),
    "phases": PHASES.to_json(),
}


@pytest.mark.parametrize(
    "fields",
    [
        {"skip": -1},
        {"skip": MAX_STEPS_AHEAD + 1},
        {"skip": True},
        {"skip": "1"},
        {"fingerprint": []},
        {"planner_state": {"window_start": 0}},
        {"planner_state": {"window_start": 0, "window_number": 0, "steps_taken": 0.5, "carried_samples": []}},
        {"planner_state": {"window_start": 0, "window_number": 0, "steps_taken": 0, "carried_samples": [-1]}},
        {"planner_state": {"window_start": 0, "window_number": 0, "steps_taken": 0, "carried_samples": [], "more": 1}},
        {"needed": None},
        {"needed": {"batch": 3, "phases": {}}},
        {"needed": {"batch": [0, -1], "phases": {}}},
        {"needed": {"batch": None, "phases": {"vision": [0.5]}}},
        {"phases": {"microbatches": 0, "phases": []}},
        {"phases": {"microbatches": 2, "phases": [{}]}},
        {"phases": {"microbatches": 2, "phases": [VISION_ROWS.to_json() | {"rows": True}]}},
        {"phases": {"microbatches": 2, "phases": [VISION_ROWS.to_json() | {"capacities": [4, 2]}]}},
        {"row_order": {}},
        {"row_order": "search"},
        {"row_order": ORDER.to_json() | {"policy": "nonsense"}},
        {"row_order": ORDER.to_json() | {"cluster": []}},
        {"row_order": ORDER.to_json() | {"cluster": "toy"}},
        {"row_order": ORDER.to_json() | {"rendezvous": 1}},
        {"row_order": ORDER.to_json() | {"profile": 1}},
        {"row_order": ORDER.to_json() | {"profile": {}}},
        {"row_order": ORDER.to_json() | {"profile": PROFILED.to_json()["profile"] | {"peak_flops": "fast"}}},
        {"row_order": ORDER.to_json() | {"profile": {"device_kind": "x" * MAX_PROFILE_BYTES}}},
        {"row_order": ORDER.to_json() | {"plan": 1}},
        {"row_order": ORDER.to_json() | {"trainable": [1]}},
    ],
)
def test_invalid_requests_are_refused(fields):
    assert StepRequest.from_bytes(json.dumps(GOOD).encode()).skip == 0
    with pytest.raises(UserError):
        StepRequest.from_bytes(json.dumps(GOOD | fields).encode())


@hypothesis.settings(deadline=None)
@hypothesis.given(st.binary() | st.text().map(str.encode) | st.just(b"[" * 100_000))
def test_garbage_is_refused(ticket):
    with pytest.raises(UserError, match="not a step request"):
        StepRequest.from_bytes(ticket)


@pytest.fixture(scope="module")
def source():
    return SmallVQA("train")


@pytest.mark.parametrize(
    ("config", "model", "name"),
    [
        ({"seed": 4}, MODEL, "seed 3 -> 4"),
        ({"rows": 8}, MODEL, "rows 4 -> 8"),
        ({"language_weight": 0.5}, MODEL, "language_weight 1.0 -> 0.5"),
        ({"quadratic_cost_weights": (("patches", 0.5),)}, MODEL, "quadratic_cost_weights [] -> [['patches', 0.5]]"),
        ({"oversized": "error"}, MODEL, "oversized 'skip' -> 'error'"),
        ({}, ModelConfig(encoders=(VisionConfig(patch=4),)), "model.patches"),
    ],
)
def test_the_fingerprint_names_everything_that_decides_a_batch(source, config, model, name):
    def identity(config: DataConfig, model: ModelConfig) -> dict[str, object]:
        return batch_fingerprint(training_pipeline(config, model, source), config)

    given = identity(CONFIG, MODEL)
    assert given == json.loads(json.dumps(given))
    assert name in fingerprint_differences(given, identity(dataclasses.replace(CONFIG, **config), model))
    faster = dataclasses.replace(CONFIG, threads=3, prefetch=7, workers=2)
    assert fingerprint_differences(given, identity(faster, MODEL)) == ""


def test_nested_differences_are_named_alone():
    theirs, ours = ({"model.windows": {"length": 8, "config": {"biases": biases}}} for biases in (["key"], []))
    assert fingerprint_differences(theirs, ours) == "model.windows.config.biases ['key'] -> []"
