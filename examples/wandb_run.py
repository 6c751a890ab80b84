"""Log two runs of one process to Weights & Biases, without an account: pip install 'mmjax[wandb]'.

    python examples/wandb_run.py

Each run is in the folder `wandb` of its workdir; `wandb sync runs/rate_*/wandb/offline-run-*` uploads them. Without
`mode="offline"`, WANDB_MODE decides, and `wandb login` comes first.
"""

import functools

import mmjax
from mmjax.training.metrics.trackers import WandbWriter

RATES = (1e-3, 3e-3)

mmjax.use_cpu_devices(8)
writer = functools.partial(WandbWriter, project="mmjax-rates", mode="offline")
for rate in RATES:
    bindings = (f"OptimizerConfig.learning_rate = {rate}", "TrainConfig.log_interval = 1")
    config = mmjax.load("tiny.gin", *bindings, steps=10, writers=(writer,), sample_questions=0, sample_images=0)
    with mmjax.Trainer(config, workdir=f"runs/rate_{rate:g}") as trainer:
        result = trainer.fit()
    print(f"learning rate {rate:g}: losses {result.losses}")
