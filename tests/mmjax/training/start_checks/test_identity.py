"""The identity of a run, and what changes it."""

import importlib
import sys
import types

from mmjax.training.start_checks import identity


def test_the_identity_of_the_same_run_is_the_same_and_names_what_changed(tmp_path, monkeypatch):
    before = identity.run_identity("configuration", "plan")
    assert identity.run_identity("configuration", "plan") == before
    assert {"version of jax", "version of Python", "source of mmjax", "configuration", "plan"} <= set(before)

    (tmp_path / "my_model_of_this_test.py").write_text("SIZE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("my_model_of_this_test")
    try:
        after = identity.run_identity("configuration", "another plan")
        (tmp_path / "my_model_of_this_test.py").write_text("SIZE = 2\n")
        edited = identity.run_identity("configuration", "another plan")
    finally:
        del sys.modules["my_model_of_this_test"]
    assert {name for name in after if after[name] != before.get(name)} == {"plan", "source of my_model_of_this_test"}
    assert {name for name in edited if edited[name] != after[name]} == {"source of my_model_of_this_test"}


def test_installed_packages_are_not_compared_by_source_and_many_own_ones_as_one(tmp_path, monkeypatch):
    before = identity.run_identity("configuration", "plan")
    folders = [tmp_path / "lib/python3/dist-packages", tmp_path / "home/.local/lib/site-packages/deeper", tmp_path]
    names = [f"package_of_this_test_{number}" for number in range(identity.MOST_OWN_PACKAGES + 3)]
    for number, name in enumerate(names):
        folder = folders[min(number, 2)]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text("SIZE = 1\n")
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules[name].__file__ = str(folder / f"{name}.py")
        if number == 2:
            few_packages = identity.run_identity("configuration", "plan")
    many_packages = identity.run_identity("configuration", "plan")
    (tmp_path / f"{names[-1]}.py").write_text("SIZE = 2\n")
    edited = identity.run_identity("configuration", "plan")
    assert set(few_packages) - set(before) == {"source of package_of_this_test_2"}
    name = "source of packages that are not installed"
    assert set(many_packages) - set(before) == {name} and many_packages[name] != edited[name]


def test_another_source_of_mmjax_is_another_identity(tmp_path, monkeypatch):
    (tmp_path / "own_package_of_this_test/deeper").mkdir(parents=True)
    (tmp_path / "own_package_of_this_test/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / "own_package_of_this_test/deeper/file.gin"
    digests = set()
    for text in ("a = 1", "a = 2"):
        source.write_text(text)
        digests.add(identity.source_digest(["own_package_of_this_test"]))
    source.rename(source.with_stem("other"))
    assert len(digests | {identity.source_digest(["own_package_of_this_test"])}) == 3
