"""The data set that most tests of data read: easy-VQA, whose package is installed with its images."""

import pytest

from data.datasets.easy_vqa import EasyVQA


@pytest.fixture(scope="session")
def train():
    return EasyVQA("train")


@pytest.fixture(scope="session")
def held_out():
    return EasyVQA("test")
