"""`python -m mmjax.plan`; the command is in `mmjax.commands.plan`."""

from mmjax import cli
from mmjax.commands.plan import main

if __name__ == "__main__":
    cli.run(main)
