"""Flags whose value may be left out."""

import dataclasses

import pytest

from configs.common.errors import UserError
from mmjax import cli
from mmjax.cli.flags import parse_flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class EditArguments(cli.JsonArguments):
    edits: int | None = cli.flag(None, "Edits.", metavar="N", parse=cli.integer(1), bare=200)


@pytest.mark.parametrize(
    ("line", "edits"), [([], None), (["--edits"], 200), (["--edits=5"], 5), (["--edits", "--json"], 200)]
)
def test_a_flag_without_a_value_has_the_value_that_it_stands_for(line, edits):
    assert parse_flags(EditArguments, line).edits == edits


def test_a_value_that_follows_is_parsed():
    with pytest.raises(UserError, match="'0' is not a whole number from 1"):
        parse_flags(EditArguments, ["--edits=0"])


def test_help_shows_that_the_value_may_be_left_out(capsys):
    with pytest.raises(SystemExit):
        parse_flags(EditArguments, ["--help"])
    assert "--edits[=N]" in capsys.readouterr().out
