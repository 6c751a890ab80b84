"""The planning floor stands without jax."""

import subprocess
import sys


def test_planning_imports_no_jax():
    modules = "sharding.plan, sharding.schedule, sharding.transfer, sharding.specs, sharding.axes"
    program = f"import sys, {modules}; print(sorted(name for name in sys.modules if name.startswith('jax')))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
