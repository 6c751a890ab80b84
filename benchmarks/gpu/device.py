"""The device of this machine and the versions that matter: `python -m benchmarks.gpu.device` prints them as JSON."""

import importlib.metadata
import json
import platform

PACKAGES = ("jax", "jaxlib", "flax", "torch", "transformers", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
CAPABILITY = "9.0"


def device_and_versions() -> dict[str, str]:
    """Kind, versions, and why the benchmark cannot run here in full (`problem`, empty where it can)."""
    import jax

    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", ""))
    problem = "" if capability == CAPABILITY else _problem(device.platform, device.device_kind)
    versions = {name: version for name in PACKAGES if (version := _version(name))}
    return {"device": device.device_kind, "python": platform.python_version(), **versions, "problem": problem}


def _problem(kind: str, name: str) -> str:
    return (
        f"benchmarks.gpu is for one Hopper GPU (H100, H200) and jax finds a {kind}, {name}; install jax with CUDA, "
        "or give --dry_run, which says that the command runs and nothing else"
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    print(json.dumps(device_and_versions()))
