"""What every test runs under: eight CPU devices, strict promotion, shapes and types checked at run time."""

import gc
import os

from tests.xla_flags import xla_flags

# Before jax starts: it reads these once. Child processes of tests inherit them.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = xla_flags(8)
os.environ.setdefault("NPROC", "16")  # XLA's thread pool: fewer threads than participants hang in collectives
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"  # most programs run once; half the time to compile them
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

# Tracing makes millions of objects that live on, among which collections find nothing: an eighth of the time of a test.
gc.set_threshold(100_000, 50, 100)

from tests.type_checks import check_types  # noqa: E402

check_types(["mmjax", "sharding", "pallas_kernels", "data"])

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
