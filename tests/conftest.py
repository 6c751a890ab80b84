"""What every test runs under: eight CPU devices, strict promotion, tiers, and optionally checks of types and shapes."""

import gc
import os
import pathlib

from sharding.runtime.compilation_cache import default_cache_folder, enable_compilation_cache
from tests.tiers import TIERS, ProcessStarts, is_selected, tier_of, tiers_of_file
from tests.xla_flags import xla_flags

# Before jax starts: it reads these once. Child processes of tests inherit them.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = xla_flags(8)
os.environ.setdefault("NPROC", "16")  # XLA's thread pool: fewer threads than participants hang in collectives
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"  # most programs run once; half the time to compile them
# Programs come from a cache on disk only if asked: to fill one takes longer than it saves in its first run.
if os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false") == "true":
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
    enable_compilation_cache(default_cache_folder().with_name("tests"))

# Tracing makes millions of objects that live on, among which collections find nothing: an eighth of the time of a test.
gc.set_threshold(100_000, 50, 100)

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# No test judges how long something takes, and neither does hypothesis: machines are slow and shared.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

_MANY_MAPS = 20_000
"""Memory maps of a process, of which Linux allows 65,530 by default (vm.max_map_count); compiled programs take several
each, and XLA crashes where it gets no more."""

_STARTED = ProcessStarts()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--check-types",
        action="store_true",
        help="check types and shapes at run time in every function of the project, a quarter slower",
    )


def pytest_configure(config: pytest.Config) -> None:
    for tier, proves in TIERS.items():
        config.addinivalue_line("markers", f"{tier}: {proves}")
    if config.getoption("check_types"):
        from tests.type_checks import check_types

        check_types(["mmjax", "sharding", "pallas_kernels", "data"])


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """A file whose tiers are not selected is not imported."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    selected = any(is_selected(tier, config.option.markexpr) for tier in tiers_of_file(collection_path))
    return None if selected else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with engines or clusters come first: they take the longest, and none should be left to one worker."""
    for item in items:
        tier_of(item)  # raises if there are two, or one that its file does not name
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/mmjax/training/", "tests/processes/")))


@pytest.fixture(autouse=True)
def _no_process_of_another_tier(request: pytest.FixtureRequest):
    yield
    started, tier = _STARTED.take(), tier_of(request.node)
    if started and tier in ("default", "layouts", "runs"):
        pytest.fail(f"a test of the tier {tier} started {started} Python processes: mark it processes")


@pytest.fixture(scope="module", autouse=True)
def _unload_programs():
    yield
    with open("/proc/self/maps") as maps:
        count = sum(1 for _ in maps)
    if count > _MANY_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="module")
def compiled_as_users_do():
    """For a file of tests about rounding, or that trains for long.

    Without optimizations jax 0.12 computes a less accurate tanh, and a convolution takes several times as long.
    """
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()
