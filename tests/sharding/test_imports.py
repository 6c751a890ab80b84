"""Planning imports no jax, and neither does reading data on hosts that do not train."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

MODULES = (
    "sharding.axes",
    "sharding.specs.modules",
    "sharding.plans.plan",
    "sharding.schedules.named.build",
    "sharding.simulation.pages.html_page",
    "sharding.simulation.pages.perfetto",
    "sharding.simulation.simulator",
    "sharding.planners.policies.auto",
    "sharding.balancing.reordering.row_reorderer",
    "sharding.runtime.transfer_plan",
    "data.datasets.conversations",
    "mmjax.training.config",
)


def test_planning_and_reading_data_import_no_jax():
    program = f"import sys, {', '.join(MODULES)}; print(sorted({{'jax', 'jaxlib'}} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
