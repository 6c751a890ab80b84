"""Fenced blocks of README.md and docs/: each is run by the first session or says why not, and is right as it stands."""

import ast
import importlib
import importlib.util
import itertools
import pathlib
import re
import shlex

import pytest

from mmjax import cli
from sharding.planners.policies import auto
from sharding.plans.plan_error import PlanError
from sharding.schedules.named import registry

HOME = pathlib.Path(__file__).resolve().parents[1]
PLACEHOLDERS = re.compile(r"…|=[A-Z]\b|=$|= ")
COMMAND_WORDS = re.compile(r"^\s*(?:\$ )?(?:python3?|mmjax|pip|sbatch|kubectl)\b.*\s-", re.MULTILINE)


def _load_reader():
    spec = importlib.util.spec_from_file_location("document_blocks", HOME / ".ci" / "document_blocks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


READER = _load_reader()
DOCUMENTS = READER.documents(HOME)
BLOCKS = [block for document in DOCUMENTS for block in READER.read_blocks(document, HOME)]


def every_block_of(language: str):
    """A parameter for every block of a language."""
    blocks = [block for block in BLOCKS if block.language == language]
    return pytest.mark.parametrize("block", blocks, ids=[block.where for block in blocks])


def mmjax_commands(text: str) -> list[tuple[str, list[str]]]:
    """The commands of mmjax in a shell's text: their names and flags."""
    commands = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        words.whitespace_split = True
        for is_operator, group in itertools.groupby(words, lambda word: set(word) <= set("&|;<>")):
            command = list(group)
            if is_operator:
                continue
            if command[:2] == ["python", "-m"] and command[2].startswith("mmjax."):
                commands.append((command[2].removeprefix("mmjax."), command[3:]))
            elif command[0] == "mmjax":
                commands.append((command[1], command[2:]))
    return commands


def check_flags(name: str, flags: list[str]) -> None:
    """Raises UserError if a command has no such flag or value."""
    command = importlib.import_module(f"mmjax.commands.{name}").COMMAND
    arguments = command.parse(flags)
    if name == "launch":
        check_flags(arguments.command[0], list(arguments.command[1:]))


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A folder with examples/ and all files of the documents, as a reader has who has come to the end.

    What their configurations register is undone: other tests of this process compare all policies that there are.
    """
    monkeypatch.setattr(auto, "PLANNING_POLICIES", dict(auto.BUILT_IN_POLICIES))
    monkeypatch.setattr(registry, "_schedules", dict(registry.BUILT_IN_SCHEDULES))
    (tmp_path / "examples").symlink_to(HOME / "examples")
    for block in BLOCKS:
        if block.file and not block.file.startswith("examples/"):
            (tmp_path / block.file).write_text(block.text)
    # What `python -m mmjax.convert --print` writes.
    (tmp_path / "llama.gin").write_text('include "examples/shapes.gin"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(HOME / "examples"))
    return tmp_path


def test_blocks_of_all_kinds_are_found():
    kinds = {(block.language, block.is_run) for block in BLOCKS}
    assert kinds == {("bash", True), ("bash", False), ("python", True), ("python", False), ("gin", True)} | {
        (language, False) for language in READER.SHOWN
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_shows_commands_in_fenced_blocks_with_a_language_alone(document):
    languages = {block.language for block in READER.read_blocks(document, HOME)}
    assert languages <= {*READER.RUN, *READER.SHOWN}
    rest = READER.without_blocks(document)
    assert "```" not in rest
    assert re.findall(r"\n\n    \S.*", rest) == []


@pytest.mark.parametrize("language", READER.SHOWN)
def test_a_block_that_is_only_shown_holds_no_command(language):
    assert [b.where for b in BLOCKS if b.language == language and COMMAND_WORDS.search(b.text)] == []


@every_block_of("bash")
def test_the_commands_of_a_block_have_the_flags_that_it_names(block, monkeypatch, scratch):
    for name, flags in mmjax_commands(block.text):
        check_flags(name, flags)


def test_no_two_runs_of_the_documents_share_a_workdir():
    workdirs = []
    for block in BLOCKS:
        if block.is_run and block.language == "python":
            workdirs += re.findall(r"Trainer\(.*workdir=\"([^\"]+)\"", block.text)
        elif block.is_run and block.language == "bash":
            begun = [flags for name, flags in mmjax_commands(block.text) if name == "train" and "--resume" not in flags]
            workdirs += [flag for flags in begun for flag in flags if flag.startswith("--workdir=")]
    assert len(workdirs) > 5 and len({name.removeprefix("--workdir=") for name in workdirs}) == len(workdirs)


@every_block_of("bash")
def test_the_files_of_the_repository_that_a_block_names_exist(block):
    named = re.findall(r"(?<![\w/.])(?:examples|configs|tests)/[\w./-]*\w", block.text)
    assert [path for path in named if not (HOME / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_commands_in_the_text_of_a_document_have_the_flags_that_it_names(document, scratch):
    for quoted in re.findall(r"`((?:python -m mmjax\.|mmjax )[^`]*)`", READER.without_blocks(document)):
        line = " ".join(quoted.split())
        if "--" in line and "--help" not in line and not PLACEHOLDERS.search(line):
            for name, flags in mmjax_commands(line):
                check_flags(name, flags)


@every_block_of("gin")
def test_a_configuration_parses_in_the_folder_of_a_reader(block, scratch):
    assert block.file, "name the file in a comment in the first line"
    cli.parse_gin((block.file,))


def test_what_the_configurations_register_is_undone():
    assert auto.PLANNING_POLICIES == auto.BUILT_IN_POLICIES
    with pytest.raises(PlanError, match="eager_1f1b"):
        registry.find_schedule("eager_1f1b")


@every_block_of("gin")
def test_a_configuration_that_examples_have_too_is_theirs(block):
    if (HOME / block.file).exists():
        assert block.text == (HOME / block.file).read_text()


@every_block_of("python")
def test_what_a_program_imports_exists(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            for name in (alias.name for alias in node.names if not hasattr(module, alias.name)):
                importlib.import_module(f"{node.module}.{name}")  # raises if it is no module in a package either


def test_the_first_session_runs_what_a_block_says(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```bash\nls\n```\ntext\n```bash not run: needs a cluster\nsrun\n```\n- item:\n\n"
        "  ```python\n  # a.py\n  if x:\n      y\n  ```\n"
    )
    blocks = READER.read_blocks(page, tmp_path)
    assert [(block.where, block.language, block.reason, block.is_run, block.file) for block in blocks] == [
        ("page.md:3", "bash", "", True, ""),
        ("page.md:7", "bash", "needs a cluster", False, ""),
        ("page.md:12", "python", "", True, "a.py"),
    ]
    assert blocks[2].text == "# a.py\nif x:\n    y\n"
    assert READER.without_blocks(page) == "# Page\n\n\ntext\n\n- item:\n\n\n"


@pytest.mark.parametrize("info", ["bash not run:", "bash not run: ", "bash later", "bash not run"])
def test_a_block_that_is_not_run_must_say_why(tmp_path, info):
    page = tmp_path / "page.md"
    page.write_text(f"```{info}\nls\n```\n")
    with pytest.raises(ValueError, match="page.md:1"):
        READER.read_blocks(page, tmp_path)


def test_commands_are_found_among_others():
    text = "cp a b && python -m mmjax.plan --devices=2 \\\n  --json > x    # why\nmmjax launch --devices=2 -- train\n"
    assert mmjax_commands(text) == [("plan", ["--devices=2", "--json"]), ("launch", ["--devices=2", "--", "train"])]


def test_a_flag_that_a_command_does_not_have_is_found():
    with pytest.raises(cli.UserError, match="--stepps"):
        check_flags("launch", ["--processes=2", "--", "train", "--stepps=2"])
