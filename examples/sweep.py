"""Train with three learning rates in one process: programs compiled for the first serve the others.

    python examples/sweep.py
"""

import time

import mmjax

RATES = (1e-3, 3e-3, 1e-2)
STEPS = 20

mmjax.use_cpu_devices(8)
print("learning rate   loss of steps 1-5   of 16-20   seconds")
for rate in RATES:
    config = mmjax.load("tiny.gin", f"OptimizerConfig.learning_rate = {rate}", steps=STEPS)
    begin = time.perf_counter()
    with mmjax.Trainer(config) as trainer:
        losses = [trainer.step().losses["backbone"] for _ in range(STEPS)]
    seconds = time.perf_counter() - begin
    print(f"{rate:13g}   {sum(losses[:5]) / 5:17.3f}   {sum(losses[-5:]) / 5:8.3f}   {seconds:7.1f}")
