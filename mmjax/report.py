"""`python -m mmjax.report`; the command is in `mmjax.commands.report`."""

from mmjax import cli
from mmjax.commands.report import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
