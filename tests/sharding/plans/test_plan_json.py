"""Plans as JSON: what is written reads back, and what cannot be read is refused by key."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.schedule_hints import ScheduleHints
from sharding.plans.unit_plan import UnitPlan
from tests.sharding.plans.test_plan import PLAN, refused


def test_json_has_one_key_per_line_and_reads_back(tmp_path):
    path = tmp_path / "plan.json"
    PLAN.save(path)
    assert Plan.load(path) == PLAN
    assert '      "devices": "2-5",\n' in path.read_text()
    assert "[]" not in path.read_text()


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 2), st.data())
@settings(max_examples=50, deadline=None)
def test_json_round_trip_of_any_plan(layers, dp, tp, data):
    chunks, cp = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    ep = data.draw(st.sampled_from([size for size in (1, 2, 3) if dp % size == 0]))
    count = dp * cp * tp * len(layers)
    layers *= chunks
    devices = tuple(data.draw(st.permutations(range(count))))
    recompute = tuple(data.draw(st.sampled_from(("none", "selective", "full"))) for _ in layers)
    name = data.draw(st.text(min_size=1, max_size=100).filter(str.isprintable))
    seconds = st.lists(st.floats(0, 1e6), min_size=len(layers), max_size=len(layers)).map(tuple)
    both_seconds = data.draw(st.just(((), ())) | st.tuples(seconds, seconds))
    microbatches = data.draw(st.integers(1, 99))
    unit = UnitPlan(
        name,
        ("a", "b"),
        devices,
        layers=tuple(layers),
        recompute=recompute,
        parallelism=Parallelism(dp=dp, tp=tp, chunks=chunks, cp=cp, ep=ep),
        schedule_hints=ScheduleHints(
            extra_microbatches=data.draw(st.integers(0, microbatches * chunks - 1)),
            forward_seconds=both_seconds[0],
            backward_seconds=both_seconds[1],
        ),
    )
    plan = Plan((unit,), microbatches, data.draw(st.sampled_from(("1f1b", "interleaved", "gpipe"))))
    assert Plan.from_json(plan.to_json()) == plan


def test_defaults_may_be_left_out_of_the_json():
    text = json.dumps({"units": [{"name": "all", "modules": ["vision"], "devices": "3"}]})
    assert Plan.from_json(text) == Plan((UnitPlan("all", ("vision",), (3,)),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the plan is not JSON: line 1"),
        ("[]", "the plan must be a JSON object"),
        ('{"microbatches": 2}', "the plan lacks the key 'units'"),
        ('{"units": [], "stages": 3}', "the plan has the unknown key 'stages'"),
        ('{"units": 3}', "the plan: units is 3; it must be a list of objects"),
        ('{"units": []}', "the plan has no units"),
        ('{"units": [{"name": "a", "modules": ["x"]}]}', "units[0] lacks the key 'devices'"),
        (
            '{"units": [{"name": "a", "modules": ["x"], "devices": "0", "ddp": 1}]}',
            "units[0] has the unknown key 'ddp'",
        ),
        ('{"units": [{"name": "a", "modules": "x", "devices": "0"}]}', "units[0]: modules is 'x'"),
        (
            '{"units": [{"name": "a", "modules": ["x"], "devices": [0, 1]}]}',
            "units[0]: devices is [0, 1]; it must be a string such as '0-3,8-11'",
        ),
        (
            '{"units": [{"name": "a", "modules": ["x"], "devices": "3-1"}]}',
            "units[0]: devices is '3-1'; the range 3-1 descends: write 1-3, or each number in the order wanted",
        ),
        (
            '{"units": [{"name": "a", "modules": ["x"], "devices": "0", "parallelism": {"dp": true}}]}',
            "units[0].parallelism: dp is True",
        ),
        (
            '{"units": [{"name": "a", "modules": ["x"], "devices": "0", "dp": 1}]}',
            "units[0] has the unknown key 'dp'; known are name, modules, devices, layers, parallelism, recompute",
        ),
        (
            '{"units": [{"name": "a", "modules": ["x"], "devices": "0", "recompute": ["some"]}]}',
            "unit a: recompute of stage 0: 'some'; choose from none, selective, offload, full, or give counts",
        ),
        (
            '{"units": [{"name": "a", "modules": ["x"], "devices": "0", "parallelism": {"collectives": "rings"}}]}',
            "parallelism: collectives is 'rings'; it must be one of all_reduce, sequence_parallel, ring, mosaic",
        ),
        (
            '{"units": [{"name": "a", "modules": ["x"], "devices": "0"}], "schedule": 2}',
            "the plan: schedule is 2; it must be a string",
        ),
    ],
)
def test_bad_json_is_refused_by_name(text, message):
    with refused(message):
        Plan.from_json(text)


def test_errors_name_an_invalid_or_missing_file(tmp_path):
    (tmp_path / "bad.json").write_text("{}")
    with refused(f"{tmp_path / 'bad.json'}: the plan lacks the key 'units'"):
        Plan.load(tmp_path / "bad.json")
    with refused(f"{tmp_path / 'none.json'} cannot be read"):
        Plan.load(tmp_path / "none.json")
