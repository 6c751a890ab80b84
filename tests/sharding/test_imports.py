"""The planning floor stands without jax, and so does what reads data on hosts where nothing is trained."""

import subprocess
import sys


def test_planning_imports_no_jax():
    modules = "sharding.plan, sharding.schedule, sharding.transfer, sharding.specs, sharding.axes, sharding.simulate"
    modules += ", sharding.timeline_html, sharding.timeline_perfetto"
    modules += ", sharding.planners.auto, sharding.balancing.arrangement"
    modules += ", data.conversations, mmjax.training.config"
    program = f"import sys, {modules}; print(sorted({'jax', 'jaxlib'} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
