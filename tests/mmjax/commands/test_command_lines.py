"""Mistyped command lines of every command, through the real parsing and checking, up to where the work would start."""

import importlib
import os
import pathlib
import random
import shlex
import subprocess
import sys

import gin
import pytest

from mmjax import cli, commands
from mmjax.training.config import TrainConfig
from mmjax.training.dry_run.targets import missing_plugin
from sharding.plans.plan import single_device_plan
from sharding.specs.modules import module_graph
from tests.mmjax.weights.llama_checkpoint import BACKBONE, random_tensors, write_llama
from tests.profiles import synthetic_profile

NAMES = list(commands.NAMES)
LINES_PER_COMMAND = 20

# Command lines that pass all checks; {folder} holds the files that the fixture writes.
VALID = """
convert --folder={folder}/llama --print
convert --workdir={folder}/run --part=backbone --model_type=llama --output=out
draw_clips --folder=shapes --train=40 --test=4
describe_data --gin_file=tiny.gin --samples=10 --buckets=2 --page=page.html
generate --workdir={folder}/run --prompt=circle --temperature=1 --seed=3 --step=30
generate --workdir={folder}/run --requests={folder}/requests.jsonl
generate --workdir={folder}/run --prompt=why --item=windows={folder}/token --top_p=0.5
generate --workdir={folder}/run --prompt=why --temperature=1 --top_k=3 --min_p=0.1 --stop=a --stop=b
generate --workdir={folder}/run --prompt=why --repetition_penalty=1.1
launch --processes=2 --devices=4 --restarts=1 --restart_window=60 -- train --gin_file=tiny.gin --workdir=run
launch --restarts=1 --min_processes=1 -- train --workdir=run --plan=auto --profile={folder}/profile.json
launch -- verify --gin_file=tiny.gin
plan --gin_file=tiny.gin --cluster=cpu --devices=2 --policy=rigid --output=plan.json
plan --gin_file=tiny.gin --timed_plans=2 --devices=4 --output=plan.json
plan --gin_file=models/mllm_9b.gin --cluster=disttrain_a800 --devices=8
plan --gin_file=models/mllm_9b.gin --cluster=hardware/disttrain_a800.gin
plan --gin_file=tiny.gin --cp=backbone:2 --profile={folder}/profile.json --cluster=cpu
profile --gin_file=tiny.gin --tp=1,2 --microbatch_rows=1 --recompute=full --steps=1 --output=profile.json
profile --gin_file=tiny.gin --tp=1 --cp=1,2 --context_transfer=ring,all_to_all --steps=1
report --workdir={folder}/run --page=report.html
serve_data --gin_file=tiny.gin --host=127.0.0.1 --port=0 --token_file={folder}/token
dryrun --gin_file=tiny.gin --plan={folder}/plan.json --target=h100 --page=page.html
simulate --gin_file=tiny.gin --plan={folder}/plan.json --cluster=cpu --page=page.html --trace=trace.json
synthesize_speech --folder=speech --voices=en-us --held_out_voices=en-gb --speeds=180,200
train --gin_file=tiny.gin --steps=3 --batch_rows=12 --learning_rate=0.1 --seed=1 --workdir=run --gin.STEPS=4
train --gin_file=tiny.gin --plan={folder}/plan.json --profile={folder}/profile.json --gin.TrainConfig.seed=3
verify --gin_file=tiny.gin --plan={folder}/plan.json --steps=1 --dtype=bfloat16 --json
"""
BAD_VALUES = [
    "",
    " ",
    "ten",
    "2.5",
    "-1",
    "0",
    "1e999",
    "nan",
    "9" * 500,
    "None",
    "('a',)",
    "[1, 2",
    "'",
    "a=b",
    "ü☃🙂",
    "--",
    "-",
    "@x",
    "%x",
    "@EasyVQA()",
    "/dev/null",
    "x" * 300,
    "nowhere",
    "{folder}",
    "{folder}/binary",
    "{folder}/other.json",
    "{folder}/list.json",
    "{folder}/plan.json",
    "{folder}/empty",
    "{folder}/token/below",
    "models/mllm_9b.gin",
    "data/llava_like.gin",
    "tinny.gin",
    "{folder}/profile.json",
    "quickstart.gin",
    "backbone:x",
    "1,,2",
    "en-us+nobody",
]
BINDINGS = [
    "TrainConfg.steps=3",
    "TrainConfig.step=3",
    "TrainConfig.steps='ten'",
    "TrainConfig.steps=2.5",
    "TrainConfig.plan=('a',)",
    "STEPZ=3",
    "TrainConfig.steps=",
    "TrainConfig.model=3",
    "TrainConfig.data=@nothing()",
    "=3",
    ".=3",
    "é=1",
    "x/y/z=3",
    "TrainConfig.trainable=('nowhere',)",
    "DataConfig.rows=-1",
    "DataConfig.rows=(",
    "ModelConfig.encoders=@VisionConfig()",
    "DataConfig.mixture=(('vqa', 0.0),)",
    "VisionConfig.width=30",
    "TrainConfig.steps=%STEPZ",
    "TrainConfig.dataset=None",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Valid inputs of every command, and files that are something else."""
    folder = tmp_path_factory.mktemp("inputs")
    cli.parse_gin(("tiny.gin",))
    config = cli.configured(TrainConfig)
    cli.write_operative_config(str(folder / "run"))
    graph = module_graph(config.model)
    for name in ("plan.json", "run/plan.json"):
        single_device_plan(graph).save(folder / name)
    (folder / "profile.json").write_text(synthetic_profile(graph, "cpu").to_json())
    write_llama(folder / "llama", random_tensors(BACKBONE), BACKBONE)
    (folder / "requests.jsonl").write_text('{"prompt": "a circle"}\n')
    (folder / "token").write_text("a-long-random-word")
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "other.json").write_text('{"a": [1, {"b": null}]}')
    (folder / "list.json").write_text("[1, 2]")
    (folder / "empty").write_text("")
    return folder


def mutated(line: list[str], chance: random.Random) -> list[str]:
    """A command line with one or two mistakes."""
    line = list(line)
    for _ in range(chance.choice((1, 1, 2))):
        place = chance.randrange(len(line))
        name, equals, value = line[place].partition("=")
        letter = chance.randrange(min(2, len(name) - 1), len(name)) if name else 0
        line[place : place + 1] = chance.choice(
            [
                *[[f"{name}={chance.choice(BAD_VALUES)}"]] * 5,
                *[[line[place], f"--gin.{chance.choice(BINDINGS)}"]] * 3,
                [name, chance.choice(BAD_VALUES)],
                [name[:letter] + name[letter + 1 :] + equals + value],
                [name[:letter] + "é" + name[letter:] + equals + value],
                [line[place], f"--gin_file={chance.choice(BAD_VALUES)}"],
                [name],
                [],
                [line[place], chance.choice(BAD_VALUES)],
            ]
        )
        if not line:
            return line
    return line


def checked(name: str, line: list[str]) -> int:
    """The exit code of a command line whose work is left out."""
    command = importlib.import_module(f"mmjax.commands.{name}").COMMAND
    return cli.exit_code(lambda: command.prepare(command.parse(line)) and None)


def lines_of(name: str, folder: pathlib.Path) -> list[list[str]]:
    return [line.format(folder=folder).split()[1:] for line in VALID.splitlines() if line.split()[:1] == [name]]


@pytest.mark.parametrize("name", NAMES)
def test_command_lines_pass_all_checks_or_end_with_one_line(name, folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    chance = random.Random(name)
    refused = 0
    for number in range(LINES_PER_COMMAND):
        line = [
            part.replace("{folder}", str(folder)) for part in mutated(chance.choice(lines_of(name, folder)), chance)
        ]
        try:
            code = checked(name, line)
        except BaseException as error:
            raise AssertionError(f"{number}: {shlex.join(line)}") from error
        said = capfd.readouterr().err
        if code:
            assert code == 2 and said.startswith("error: ") and said.count("\n") == 1, f"{shlex.join(line)}: {said}"
            refused += 1
    assert refused >= LINES_PER_COMMAND // 3
    gin.clear_config()


@pytest.mark.parametrize("name", NAMES)
def test_valid_command_lines_pass(name, folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    if name == "synthesize_speech":
        pytest.importorskip("soundfile")
    if name == "dryrun" and missing_plugin():
        pytest.skip(missing_plugin())
    for line in lines_of(name, folder):
        assert checked(name, line) == 0, capfd.readouterr().err
        assert not list(tmp_path.iterdir())  # what was tried was removed again
    gin.clear_config()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train --stepz=3", "there is no flag --stepz; did you mean --steps?"),
        ("train --steps=ten", "--steps: 'ten' is not a whole number from 1"),
        ("train --steps", "--steps: expected one argument"),
        ("train --gin_file=tinny.gin", "did you mean tiny.gin?"),
        ("train --gin_file=tiny.gin --gin.TrainConfg.steps=3", "did you mean TrainConfig?"),
        ("train --gin_file=tiny.gin --gin.TrainConfig.step=3", "no parameter step; did you mean steps?"),
        ("train --gin_file=tiny.gin --gin.STEPS='ten'", "steps is 'ten' (the macro STEPS); it must be a whole"),
        (
            "train --gin_file=tiny.gin --gin.TrainConfig.steps=2.5",
            "TrainConfig.steps is 2.5; it must be a whole number",
        ),
        ("train --gin_file=tiny.gin --gin.TrainConfig.plan=('a',)", "TrainConfig.plan is ('a',); it must be text"),
        ("train --gin_file=models/mllm_9b.gin", "needs TrainConfig.dataset"),
        ("train --gin_file=data/llava_like.gin", "--gin_file=llava.gin --gin_file=data/llava_like.gin"),
        ("train --workdir={folder}/token", "is not the path of a folder"),
        ("describe_data --page={folder}", "is not the path of a file"),
        ("plan --output=nowhere/plan.json", "there is no folder nowhere to write plan.json to"),
        ("simulate --plan={folder}/binary", "is not UTF-8: byte 128"),
        ("simulate --plan={folder}", "cannot be read: Is a directory"),
        ("plan --gin_file={folder}/binary", "binary: "),
        ("plan --policy=rigit", "did you mean rigid?"),
        ("plan --cluster=disttrain_a80", "did you mean disttrain_a800?"),
        ("plan --cluster=models/mllm_9b.gin", "models/mllm_9b.gin describes no cluster"),
        ("launch --processes=2 -- trian", "there is no command 'trian'; did you mean train?"),
        ("launch --processes=2", "no command follows --: write mmjax launch"),
        ("launch --processes=2 -- train --stepz=3", "there is no flag --stepz; did you mean --steps?"),
        ("launch --processes=2 -- plan", "--processes=2 needs a command of several processes: train or verify"),
        ("launch --restarts=1 -- train", "--restarts=1 needs -- train --workdir=FOLDER"),
        ("launch --restarts=1 -- generate --workdir={folder}/run --prompt=a", "--restarts=1 needs -- train --workdir"),
        ("generate --workdir={folder}/run --requests={folder}/list.json", "list.json:1: a request is an object"),
    ],
)
def test_messages_name_the_mistake_and_what_helps(arguments, said, folder, capfd):
    name, *line = arguments.format(folder=folder).split()
    assert checked(name, line) == 2
    assert said in capfd.readouterr().err


def test_an_interrupted_command_says_so_in_one_line(capfd):
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert cli.exit_code(interrupted) == 130
    assert capfd.readouterr().err == "interrupted\n"


@pytest.fixture
def closed_pipe():
    """The end to write to of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


PRINTING_A_LOT = "from mmjax import cli; raise SystemExit(cli.exit_code(lambda: print('line\\n' * 100_000)))"
MISTAKEN = """
from mmjax import cli
def work():
    print("a line that fits into the buffer")
    raise cli.UserError("wrong")
raise SystemExit(cli.exit_code(work))
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "ending"),
    [
        pytest.param(("-m", "mmjax", "--help"), (141, ""), id="the list of commands"),
        pytest.param(("-m", "mmjax.verify", "--help"), (141, ""), id="argparse"),
        pytest.param(
            ("-m", "mmjax.plan", "--gin_file=models/mllm_9b.gin", "--devices=24", "--policy=rigid"),
            (141, ""),
            id="rich",
        ),
        pytest.param(("-c", PRINTING_A_LOT), (141, ""), id="print"),
        pytest.param(("-c", MISTAKEN), (2, "error: wrong\n"), id="a mistake"),
    ],
)
def test_a_command_whose_output_is_closed_ends_silently(arguments, ending, closed_pipe):
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, stdout=closed_pipe, stderr=subprocess.PIPE, text=True, check=False)
    # How far planning has come is said on standard error before anything is printed.
    told = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith(("comparing ", "compared "))]
    assert (done.returncode, "".join(told)) == ending


def test_other_broken_pipes_are_no_silent_end(closed_pipe):
    with pytest.raises(BrokenPipeError):
        cli.exit_code(lambda: os.write(closed_pipe, b"to a worker") and None)
