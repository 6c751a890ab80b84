import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.sources.paths import check_file, expand_braces, find_files


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.tar", ["a.tar"]),
        ("s-{008..011}.tar", ["s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"]),
        ("{9..10}", ["9", "10"]),
        ("{a,b}-{0..1}.tar", ["a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"]),
        ("x{,.gz}", ["x", "x.gz"]),
    ],
)
def test_braces_are_expanded_in_order(pattern, expected):
    assert expand_braces(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("{3..1}", "must ascend"),
        ("{one}", "neither a range"),
        ("{0..99999999}", "must ascend, by less than"),
        ("{0..9999}{0..9999}", "stands for 100000000 files"),
    ],
)
def test_invalid_braces_are_named(pattern, reason):
    with pytest.raises(DataError, match=reason):
        expand_braces(pattern)


@given(first=st.integers(0, 200), more=st.integers(0, 50), width=st.integers(1, 5))
@settings(deadline=None)
def test_a_range_has_every_number_once(first, more, width):
    paths = expand_braces("a{" + f"{first:0{width}}..{first + more}" + "}b")
    assert [int(path[1:-1]) for path in paths] == list(range(first, first + more + 1))
    assert all(len(path) - 2 >= width for path in paths)


def test_braces_and_wildcards_find_files_in_order(tmp_path):
    for name in ("b-1", "b-0", "a-0", "c"):
        (tmp_path / name).write_text("x")
    assert find_files(f"{tmp_path}/{{b,a}}-*") == tuple(f"{tmp_path}/{name}" for name in ("b-0", "b-1", "a-0"))
    assert find_files([f"{tmp_path}/c", f"{tmp_path}/a-?"]) == (f"{tmp_path}/c", f"{tmp_path}/a-0")


def test_existing_paths_are_not_expanded(tmp_path):
    (tmp_path / "a{1..2}[x]").write_text("x")
    assert find_files(f"{tmp_path}/a{{1..2}}[x]") == (f"{tmp_path}/a{{1..2}}[x]",)


@pytest.mark.parametrize(
    ("patterns", "reason"),
    [
        ([], "no file is named"),
        ("{home}/gone", "gone' does not exist"),
        ("{home}/*.gone", "no file matches"),
        ("{home}", "is a folder where a file is expected"),
        ("{home}/empty", "is empty"),
        (["{home}/full", "{home}/f*"], "full is named twice"),
        ("{home}/\0*", "does not exist"),
        ("{home}/" + "a" * 300, "does not exist"),
    ],
)
def test_unreadable_paths_are_named(tmp_path, patterns, reason):
    (tmp_path / "empty").touch()
    (tmp_path / "full").write_text("x")
    listed = [patterns] if isinstance(patterns, str) else patterns
    with pytest.raises(DataError, match=reason):
        find_files([pattern.replace("{home}", str(tmp_path)) for pattern in listed])


@given(path=st.text(max_size=20))
@settings(deadline=None)
def test_any_path_gives_files_or_data_error(path):
    try:
        files = find_files(path)
    except DataError:
        return
    for file in files:
        check_file(file)
