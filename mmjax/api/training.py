"""`mmjax.Trainer`, which is `mmjax.reporting.run_trainer.RunTrainer`: training runs, for programs and notebooks."""

from mmjax.reporting.run_trainer import RunTrainer as Trainer

__all__ = ["Trainer"]
