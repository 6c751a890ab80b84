"""Files of a run and files given to commands, spoiled at random: they are read, or refused in one line."""

import copy
import json
import random

import pytest

from configs.common.errors import UserError
from mmjax.generation.requests import read_requests
from mmjax.reporting.run_folder import open_run
from mmjax.training.metrics.metrics_file import METRICS_FILE, read_metrics
from mmjax.training.metrics.step_timeline_file import TIMELINE_FILE, read_step_timeline, write_step_timeline
from mmjax.training.summary import finished_steps
from sharding.costs.profiled import Profile
from sharding.plans.plan import Plan
from sharding.simulation.summary import timeline_summary
from sharding.specs.modules import module_graph
from tests.mmjax.reporting.workdirs import finished_run
from tests.mmjax.training.short_runs import MODEL
from tests.profiles import synthetic_profile
from tests.sharding.steps import uneven_timeline

SPOILED = 150
"""Spoiled copies of each file."""

VALUES = (
    None,
    True,
    -1,
    0,
    10**9,
    2**63 - 1,
    10**30,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x\ny",
    "\ud800",
    [],
    {},
    [[]],
)
BYTES = (b"[" * 2000, b"9" * 5000, b"NaN", b"null", b"\xff", b"\x00", b'"a":1,', b"}", b"\n", b"-", b"1e999")


def read_summary(path):
    finished_steps(path.parent)
    return open_run(path.parent).summary


READERS = {
    "plan.json": Plan.load,
    "profile.json": Profile.load,
    TIMELINE_FILE: lambda path: timeline_summary(read_step_timeline(path.parent).timeline),
    "summary.json": read_summary,
    METRICS_FILE: lambda path: read_metrics(path.parent),
    "starts.jsonl": lambda path: open_run(path.parent).starts,
    "requests.jsonl": read_requests,
}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = finished_run(tmp_path_factory.mktemp("run"))
    write_step_timeline(folder, 5, uneven_timeline())
    requests = [{"prompt": "why?", "image": __file__, "seed": 3}, {"prompt": "a star", "output": "a.png"}]
    (folder / "requests.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    (folder / "profile.json").write_text(synthetic_profile(module_graph(MODEL), "cpu").to_json())
    return folder


def other_bytes(content: bytes, chance: random.Random) -> bytes:
    """A byte changed, or a stretch removed, repeated, replaced or cut off."""
    first, last = sorted(chance.choices(range(len(content)), k=2))
    return chance.choice(
        (
            content[:first] + bytes([content[first] ^ 1 << chance.randrange(8)]) + content[first + 1 :],
            content[:first],
            content[:first] + content[last:],
            content[:last] + content[first:],
            content[:first] + chance.choice(BYTES) + content[first:],
        )
    )


def other_value(document, chance: random.Random):
    """The document with one value, somewhere in it, replaced, removed, repeated or nested."""
    parent, key, value = None, None, document
    while isinstance(value, list | dict) and value and chance.random() < 0.9:
        parent, key = value, chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value = parent[key]
    if parent is None:
        return chance.choice(VALUES)
    match chance.randrange(4):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, list):
            parent.append(copy.deepcopy(value))
        case 2:
            parent[key] = [value]
        case _:
            parent[key] = chance.choice(VALUES)
    return document


@pytest.mark.parametrize("name", READERS)
def test_a_spoiled_file_is_read_or_refused_in_one_line(workdir, tmp_path, name):
    chance, path, read = random.Random(name), tmp_path / name, READERS[name]
    for other in ("starts.jsonl", "plan.json"):
        (tmp_path / other).write_bytes((workdir / other).read_bytes())
    content = (workdir / name).read_bytes()
    path.write_bytes(content)
    assert read(path)
    lines = content.splitlines() if name.endswith("jsonl") else [content]
    refused = 0
    for number in range(SPOILED):
        if number % 2:
            spoiled = other_bytes(content, chance)
        else:
            documents = [json.loads(line) for line in lines]
            at = chance.randrange(len(documents))
            documents[at] = other_value(documents[at], chance)
            spoiled = b"".join(json.dumps(document).encode() + b"\n" for document in documents)
        path.write_bytes(spoiled)
        try:
            read(path)
        except UserError as error:
            refused += 1
            assert str(path) in str(error) and len(str(error).splitlines()) == 1, error
    assert SPOILED / 5 < refused < SPOILED
