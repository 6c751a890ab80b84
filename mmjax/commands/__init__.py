"""The commands, one in each file: `python -m mmjax.train` runs `mmjax.commands.train`.

A file declares the command's flags, `prepare`, which reads and checks the input, and the work itself (`mmjax.cli`).
"""

TASKS = {
    "train and look": ("train", "report", "generate", "verify"),
    "data": ("describe_data", "serve_data", "synthesize_speech", "draw_clips"),
    "plan and simulate": ("plan", "simulate", "dryrun", "profile"),
    "several processes": ("launch",),
    "weights": ("convert",),
}
"""The names of all commands by the task that they are for, in the order in which they are listed."""

NAMES = tuple(name for names in TASKS.values() for name in names)
"""The names of all commands."""

FIRST_LINES = (
    "train --gin_file=tiny.gin --steps=10 --workdir=runs/short",
    "report --workdir=runs/short",
    "describe_data --gin_file=tiny.gin --page=data.html",
)
"""Command lines to begin with."""
