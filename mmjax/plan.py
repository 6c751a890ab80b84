"""`python -m mmjax.plan`; the command is in `mmjax.commands.plan`."""

from mmjax import cli
from mmjax.commands.plan import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
