"""Threads and worker processes make the batches that a single thread makes."""

import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest

from data.datasets.easy_vqa import EasyVQA
from data.packing.pipeline import training_batches
from tests.data.first_samples import CONFIG, MODEL, assert_same, take


def test_batches_do_not_depend_on_threads_or_prefetching(train):
    batches = take(training_batches(CONFIG, MODEL, train), 5)
    for threads, prefetch in ((0, 0), (3, 0), (2, 3)):
        config = dataclasses.replace(CONFIG, threads=threads, prefetch=prefetch)
        iterator = training_batches(config, MODEL, EasyVQA("train"))
        assert_same(batches, take(iterator, 5))
        iterator.close()


WORKERS = """
import dataclasses
import pathlib
from data.datasets.easy_vqa import EasyVQA
from data.errors import DataError
from data.packing.pipeline import training_batches
from tests.data.first_samples import CONFIG, MODEL, VQA, Missing, assert_same, take

if __name__ == "__main__":
    source = EasyVQA("train")
    batches = take(training_batches(CONFIG, MODEL, source), 7)
    iterator = training_batches(dataclasses.replace(CONFIG, workers=2), MODEL, source)
    assert_same(batches[:3], take(iterator, 3))
    state = iterator.get_state()
    iterator.close()
    alone = training_batches(CONFIG, MODEL, source)  # another number of workers
    alone.set_state(state)
    assert_same(batches[3:], take(alone, 4))
    alone.close()

    refusing = Missing(60, missing=range(5), damaged=range(20, 40))
    iterator = training_batches(dataclasses.replace(VQA, workers=2), MODEL, refusing)
    iterator.list_refused_in("refused")
    try:
        take(iterator, 100)
    except DataError as error:
        assert "25 of 60 samples cannot be used" in str(error), error
    iterator.close()
    assert len(pathlib.Path("refused/unreadable.jsonl").read_text().splitlines()) == 25
"""


@pytest.mark.processes
def test_worker_processes_make_the_same_batches_and_report_refusals(tmp_path):
    (tmp_path / "main.py").write_text(WORKERS)
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(" skipped" in line or "too many samples" in line for line in done.stderr.splitlines()), done.stderr


@pytest.mark.processes
def test_a_process_that_leaves_an_iterator_open_ends_cleanly():
    program = """
from configs.architectures import ModelConfig
from data.datasets.easy_vqa import EasyVQA
from data.data_config import DataConfig
from data.packing.pipeline import training_batches
batches = training_batches(DataConfig(threads=1, prefetch=2), ModelConfig(), EasyVQA("train"))
next(batches)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=pathlib.Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
