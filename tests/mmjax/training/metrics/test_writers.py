"""The files of a run are read back, also after a resume, a kill and a NaN."""

import contextlib
import math
import pathlib
import resource
import struct

import pytest

from configs.common.errors import UserError
from mmjax.training.metrics.interface import RunStart
from mmjax.training.metrics.metrics_file import read_metrics
from mmjax.training.metrics.writers import CombinedWriter, open_metrics_writer


def tensorboard_records(workdir: pathlib.Path) -> bytes:
    """The payloads of every TensorBoard file: TFRecords of length, checksum, payload, checksum."""
    payloads = b""
    for path in sorted((workdir / "tensorboard").iterdir()):
        content, position = path.read_bytes(), 0
        while position < len(content):
            (length,) = struct.unpack_from("<Q", content, position)
            payloads += content[position + 12 : position + 12 + length]
            position += length + 16
    return payloads


def test_numbers_are_read_back_from_both_files(tmp_path):
    writer = open_metrics_writer(str(tmp_path / "run"))
    writer.write(1, {"loss/language": 2.5, "mfu": 0.25})
    writer.write(2, {"loss/language": 1.5})
    assert read_metrics(str(tmp_path / "run")) == [
        {"step": 1, "loss/language": 2.5, "mfu": 0.25},
        {"step": 2, "loss/language": 1.5},
    ], "lines are there before the run ends"
    writer.close()
    records = tensorboard_records(tmp_path / "run")
    assert b"loss/language" in records and b"mfu" in records
    assert struct.pack("<f", 2.5) in records and struct.pack("<f", 0.25) in records


def test_a_resumed_run_replaces_the_steps_after_its_checkpoint(tmp_path):
    writer = open_metrics_writer(str(tmp_path))
    for step in range(1, 6):
        writer.write(step, {"loss": float(step)})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 6, "lo')  # killed while writing
    writer = open_metrics_writer(str(tmp_path), resumed_step=3)
    writer.write(4, {"loss": 40.0})
    writer.close()
    assert [(line["step"], line["loss"]) for line in read_metrics(str(tmp_path))] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (4, 40.0),
    ]


def test_a_resumed_run_does_not_repeat_what_is_written_about_its_checkpoint(tmp_path):
    first = open_metrics_writer(tmp_path)
    first.write(3, {"loss": 3.0})
    first.write(3, {"accuracy": 0.5})
    first.close()
    resumed = open_metrics_writer(tmp_path, resumed_step=3)
    resumed.write(3, {"accuracy": 0.5})
    resumed.write(3, {"accuracy": 0.5, "rouge": 0.25})
    resumed.close()
    assert read_metrics(tmp_path) == [
        {"step": 3, "loss": 3.0},
        {"step": 3, "accuracy": 0.5},
        {"step": 3, "rouge": 0.25},
    ]


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path):
    writer = open_metrics_writer(str(tmp_path))
    writer.write(1, {"loss": math.nan, "norm": math.inf, "rate": 0.5})
    writer.close()
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    assert read_metrics(str(tmp_path)) == [{"step": 1, "loss": None, "norm": None, "rate": 0.5}]


def test_other_processes_write_nothing(tmp_path):
    writer = open_metrics_writer(str(tmp_path / "run"), first_process=False)
    writer.write(1, {"loss": 1.0})
    writer.close()
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def no_file_grows_beyond(size: int):
    """Writes beyond a size fail, as on a full disk; one that crosses it is cut there."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_no_run_and_loses_nothing_once_it_has_room_again(tmp_path, caplog):
    full, undisturbed = (open_metrics_writer(tmp_path / name) for name in ("full", "undisturbed"))
    for step in range(1, 7):
        undisturbed.write(step, {"loss": 1.0 / step})
        with no_file_grows_beyond(34) if step in (2, 3, 4) else contextlib.nullcontext():
            full.write(step, {"loss": 1.0 / step})
        steps = [line["step"] for line in read_metrics(tmp_path / "full")]
        assert steps == ([1] if step < 5 else list(range(1, step + 1)))
    for writer in (full, undisturbed):
        writer.close()
    lines, expected = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("full", "undisturbed"))
    assert lines == expected
    records = tensorboard_records(tmp_path / "full")
    assert all(records.count(struct.pack("<f", 1.0 / step)) == 1 for step in (3, 5, 6))
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 4 and sum("metrics.jsonl" in text for text in warnings) == 2
    assert sum("the metrics of step 2 cannot be written (File too large)" in text for text in warnings) == 2
    assert sum("nothing of steps 2 to 5 is lost" in text for text in warnings) == 2


def test_reports_that_a_disk_never_took_are_named_at_the_end(tmp_path, caplog):
    writer = open_metrics_writer(tmp_path)
    writer.write(1, {"loss": 1.0})
    with no_file_grows_beyond((tmp_path / "metrics.jsonl").stat().st_size + 9):
        for step in (2, 3):
            writer.write(step, {"loss": 1.0})
        writer.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1]
    assert (tmp_path / "metrics.jsonl").read_bytes().endswith(b"\n")
    assert "metrics.jsonl: 2 reports, of steps 2 to 3, are lost" in caplog.text


class OwnWriter:
    """A writer of a user's own: it needs no base class."""

    def __init__(self, start: RunStart) -> None:
        self.start, self.written, self.closed = start, [], False

    def write(self, step, scalars) -> None:
        self.written.append((step, dict(scalars)))

    def close(self) -> None:
        self.closed = True


def test_a_writer_of_the_users_own_receives_what_the_files_do(tmp_path):
    made = []

    def factory(start: RunStart) -> OwnWriter:
        made.append(OwnWriter(start))
        return made[0]

    writer = open_metrics_writer(tmp_path, 3, True, [factory], {"model.width": 8})
    writer.write(4, {"loss": 0.5})
    writer.write(4, {"accuracy": 0.25})
    writer.close()
    (own_writer,) = made
    assert own_writer.start == RunStart(workdir=tmp_path, resumed_step=3, parameters={"model.width": 8})
    assert own_writer.written == [(4, {"loss": 0.5}), (4, {"accuracy": 0.25})] and own_writer.closed


def test_a_writer_that_refuses_to_start_leaves_the_metrics_as_they_are(tmp_path):
    writer = open_metrics_writer(tmp_path)
    for step in (1, 2, 3):
        writer.write(step, {"loss": 0.5})
    writer.close()

    def refuses(start: RunStart) -> OwnWriter:
        raise UserError("nobody is logged in")

    with pytest.raises(UserError, match="nobody"):
        open_metrics_writer(tmp_path, 1, True, [refuses])
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]


def test_all_writers_are_closed_though_one_fails(tmp_path):
    own_writer = OwnWriter(RunStart(workdir=tmp_path))

    class Failing(OwnWriter):
        def close(self) -> None:
            raise OSError("no connection")

    with pytest.raises(OSError, match="no connection"):
        CombinedWriter([own_writer, Failing(own_writer.start), last := OwnWriter(own_writer.start)]).close()
    assert own_writer.closed and last.closed
