"""Train with three learning rates in one process: the programs compiled for the first serve the others.

python examples/sweep.py
"""

import jax

import mmjax

RATES = (1e-3, 3e-3, 1e-2)
STEPS = 10

mmjax.use_cpu_devices(8)
compiled = []  # the programs that jax compiles, or loads from its cache of earlier processes


def listen(event: str, duration_secs: float, **details: str | int) -> None:
    """Counts compiled programs; jax calls it with the name of every event that it has timed."""
    if event == "/jax/core/compile/backend_compile_duration":
        compiled.append(details)


jax.monitoring.register_event_duration_secs_listener(listen)
print("learning rate   loss of steps 1-5   of 6-10   programs compiled")
for rate in RATES:
    config = mmjax.load("tiny.gin", f"OptimizerConfig.learning_rate = {rate}", steps=STEPS)
    compiled.clear()
    with mmjax.Trainer(config) as trainer:
        losses = [trainer.step().losses["backbone"] for _ in range(STEPS)]
    print(f"{rate:13g}   {sum(losses[:5]) / 5:17.3f}   {sum(losses[-5:]) / 5:8.3f}   {len(compiled):17}")
