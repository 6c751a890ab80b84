"""Flags that take a configuration: each takes a path, and the name of a file of the configs package."""

import dataclasses
import pathlib

import pytest

from configs.common.errors import UserError
from mmjax import cli
from mmjax.planning.arguments import ProblemArguments
from mmjax.planning.problem_inputs import read_problem
from sharding.plans.plan_purpose import PlanPurpose

MODEL = "models/llava_1_6_7b.gin"


def read(made_for: PlanPurpose | None = None, **flags):
    return read_problem(ProblemArguments(**flags), made_for)


@pytest.fixture
def own_files(tmp_path, monkeypatch) -> pathlib.Path:
    """Described data and a cluster of the user's own, in the current folder."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("my_data.gin").write_text((cli.CONFIGS / "data" / "internvl_like.gin").read_text())
    cluster = (cli.CONFIGS / "hardware" / "disttrain_a800.gin").read_text()
    pathlib.Path("my_cluster.gin").write_text(cluster.replace('"disttrain_a800"', '"mine"'))
    return tmp_path


@pytest.mark.parametrize("form", ["my_data.gin", "my_data", "./my_data.gin", "absolute"])
def test_described_data_is_given_by_a_path(own_files, form):
    inputs = read(gin_file=(MODEL,), data=str(own_files / "my_data.gin") if form == "absolute" else form)
    assert inputs.config.data == read(gin_file=(MODEL,), data="internvl_like").config.data
    assert pathlib.Path(inputs.configuration.data).samefile("my_data.gin")


@pytest.mark.parametrize("name", ["laion_like", "laion_like.gin", "data/laion_like.gin"])
def test_a_name_in_the_configs_package_may_end_in_gin_or_not(name):
    assert read(gin_file=(MODEL,), data=name).configuration.data == "laion_like"


@pytest.mark.parametrize("form", ["my_cluster.gin", "my_cluster"])
def test_a_cluster_is_given_by_a_path_or_a_name_without_its_ending(own_files, form):
    assert read(gin_file=(MODEL,), cluster=form).cluster.name == "mine"


@pytest.mark.parametrize("form", ["disttrain_a800", "disttrain_a800.gin", "hardware/disttrain_a800.gin"])
def test_a_described_cluster_of_the_configs_package_is_found_by_each_of_its_names(form):
    assert read(gin_file=(MODEL,), cluster=form).cluster.name == "disttrain_a800"


def test_a_configuration_is_found_without_its_ending():
    assert read(gin_file=("models/llava_1_6_7b",)).config == read(gin_file=(MODEL,)).config


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"data": "laion_lik"},
            r"there is no gin file laion_lik, neither .* nor in configs/data; did you mean laion",
        ),
        (
            {"data": "nothing.gin"},
            r"there is no gin file nothing.gin, neither .* nor in configs/data, which has int",
        ),
        ({"cluster": "gone.gin"}, r"there is no cluster 'gone.gin'; choose from a800"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(flags, message):
    with pytest.raises(UserError, match=message):
        read(gin_file=(MODEL,), **flags)


def test_a_plan_for_data_of_ones_own_does_not_run_their_file(own_files):
    planned = read(gin_file=(MODEL,), data="my_data.gin").configuration
    made_for = PlanPurpose(configuration=planned, cluster="a800", devices=8)
    with pytest.raises(UserError, match="--data is missing: the plan was made with described data of your own"):
        read(made_for)
    assert read(made_for, data="my_data.gin").configuration == planned
    packaged = dataclasses.replace(planned, data="laion_like")
    assert read(dataclasses.replace(made_for, configuration=packaged)).configuration.data == "laion_like"
    run_configuration = dataclasses.replace(planned, data="EasyVqaDataset")  # the name of a training run's data set
    assert read(dataclasses.replace(made_for, configuration=run_configuration)).configuration.data == "internvl_like"
