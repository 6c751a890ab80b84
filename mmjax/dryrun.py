"""`python -m mmjax.dryrun`; the command is in `mmjax.commands.dryrun`."""

from mmjax import cli
from mmjax.commands.dryrun import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
