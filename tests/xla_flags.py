"""What XLA is told in tests: how many CPU devices there are, and to compile quickly, for most programs run once."""

import importlib.metadata

# One LLVM module a program, not one for each of many threads, is a tenth less to compile; other tests use other cores.
COMPILE_QUICKLY = "--xla_cpu_parallel_codegen_split_count=1"
# Without fusion emitters a program of a stage is compiled in half the time. jaxlib 0.12 has nothing else and refuses
# the flag, as XLA refuses every flag that it does not know: by ending the process.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    COMPILE_QUICKLY += " --xla_cpu_use_fusion_emitters=false"


def xla_flags(devices: int) -> str:
    """The value of `XLA_FLAGS` for a process with so many CPU devices."""
    return f"--xla_force_host_platform_device_count={devices} {COMPILE_QUICKLY}"
