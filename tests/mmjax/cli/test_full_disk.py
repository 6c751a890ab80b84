"""A full disk at the start of a run and an empty configuration of one: one line that names the file."""

import pytest

from configs.architectures import ModelConfig
from configs.common.errors import STORAGE_FAILED, UserError
from mmjax import cli
from mmjax.cli.command import exit_code
from mmjax.commands import describe_data
from mmjax.training.run_files import write_run_files
from mmjax.training.summary import record_start
from mmjax.training.workdir_lock import LOCK_FILE, locked_workdir
from sharding.plans.plan import single_device_plan
from sharding.specs.modules import module_graph
from tests.data.first_samples import First
from tests.process_limits import small_files
from tests.tiny_model import BACKBONE


def lock(workdir):
    with locked_workdir(workdir):
        pass


def run_files(workdir):
    dataset = First("test", 1)
    plan = single_device_plan(module_graph(ModelConfig((), BACKBONE, ())))
    write_run_files(workdir, plan, dataset.tokenizer, dataset.prompt_format)


STARTS = {
    LOCK_FILE: lock,
    "plan.json": run_files,
    "starts.jsonl": lambda workdir: record_start(workdir, 0, 10, ""),
    "operative.gin": lambda workdir: cli.write_operative_config(str(workdir)),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_disk_that_is_full_at_the_start(name, tmp_path, capsys):
    cli.parse_gin(["tiny.gin"])
    with small_files(0):
        code = exit_code(lambda: STARTS[name](tmp_path))
    assert (code, capsys.readouterr().err) == (STORAGE_FAILED, f"error: {tmp_path / name}: File too large\n")
    assert not [file for file in tmp_path.iterdir() if file.stat().st_size]


@pytest.mark.parametrize("text", ["", "\n", "# Parameters for nothing:\n"])
def test_an_operative_config_that_holds_nothing(tmp_path, text):
    (tmp_path / "operative.gin").write_text(text)
    with pytest.raises(UserError, match=r"operative\.gin describes no training run: it is empty or not whole"):
        cli.run_config(tmp_path)


def test_a_page_that_a_full_disk_does_not_take(tmp_path, capsys):
    page = tmp_path / "page.html"
    work = describe_data.COMMAND.prepare(
        describe_data.COMMAND.parse(["--gin_file=tiny.gin", "--samples=2", "--json", f"--page={page}"])
    )
    with small_files(0):
        code = exit_code(work)
    assert (code, capsys.readouterr().err.splitlines()[-1]) == (STORAGE_FAILED, f"error: {page}: File too large")
