"""The planning floor stands without jax, and so does what reads data on hosts where nothing is trained."""

import subprocess
import sys


def test_planning_imports_no_jax():
    modules = "sharding.plans.plan, sharding.schedules.build, sharding.runtime.transfer, sharding.specs.modules, sharding.axes, sharding.simulation.simulator"
    modules += ", sharding.simulation.html_page, sharding.simulation.perfetto"
    modules += ", sharding.planners.auto, sharding.balancing.reordering.row_reorderer"
    modules += ", data.datasets.conversations, mmjax.training.config"
    program = f"import sys, {modules}; print(sorted({'jax', 'jaxlib'} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
