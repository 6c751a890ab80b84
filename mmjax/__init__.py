"""The Python interface of mmjax: multimodal language models in JAX, every module on a mesh with a layout of its own.

    import mmjax

    config = mmjax.load("quickstart.gin", steps=60)
    trainer = mmjax.Trainer(config, workdir="runs/short")
    trainer.fit()
    mmjax.generate("runs/short", "what color is the shape?", image="shape.png")
    comparison = mmjax.plan("models/mllm_72b.gin", cluster="a800", devices=1296)
    comparison.timeline

Every name is imported when it is first used, so that `import mmjax` starts neither jax nor anything else: devices can
still be chosen (`mmjax.use_cpu_devices`). The commands are modules of the same names, `python -m mmjax.plan`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mmjax.notebook import register_html

if TYPE_CHECKING:
    from data.datasets.from_records import from_records
    from mmjax.api.configuration import load
    from mmjax.api.data import describe_data
    from mmjax.api.devices import use_cpu_devices
    from mmjax.api.dry_runs import dryrun
    from mmjax.api.encoders import register_encoder
    from mmjax.api.generation import draw, generate, load_model
    from mmjax.api.generators import register_generator
    from mmjax.api.planning import plan, simulate
    from mmjax.api.timing import time_plans
    from mmjax.api.training import Trainer
    from mmjax.api.verification import verify
    from mmjax.reporting.run_folder import open_run
    from mmjax.training.config import TrainConfig
    from sharding.planners.policies.auto import register_policy
    from sharding.schedules.named.registry import register_schedule

__version__ = "0.1.0"

__all__ = [
    "TrainConfig",
    "Trainer",
    "describe_data",
    "draw",
    "dryrun",
    "from_records",
    "generate",
    "load",
    "load_model",
    "open_run",
    "plan",
    "register_encoder",
    "register_generator",
    "register_policy",
    "register_schedule",
    "simulate",
    "time_plans",
    "use_cpu_devices",
    "verify",
]

_MODULES = {
    "data.datasets.from_records": ("from_records",),
    "mmjax.api.configuration": ("load",),
    "mmjax.api.data": ("describe_data",),
    "mmjax.api.devices": ("use_cpu_devices",),
    "mmjax.api.dry_runs": ("dryrun",),
    "mmjax.api.encoders": ("register_encoder",),
    "mmjax.api.generators": ("register_generator",),
    "mmjax.api.generation": ("draw", "generate", "load_model"),
    "mmjax.api.planning": ("plan", "simulate"),
    "mmjax.api.timing": ("time_plans",),
    "mmjax.api.training": ("Trainer",),
    "mmjax.api.verification": ("verify",),
    "mmjax.reporting.run_folder": ("open_run",),
    "mmjax.training.config": ("TrainConfig",),
    "sharding.planners.policies.auto": ("register_policy",),
    "sharding.schedules.named.registry": ("register_schedule",),
}
_MODULE_OF_NAME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a name of the interface when it is first used (PEP 562)."""
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'mmjax' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF_NAME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_html()
