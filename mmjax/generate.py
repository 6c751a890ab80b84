"""`python -m mmjax.generate`; the command is in `mmjax.commands.generate`."""

from mmjax import cli
from mmjax.commands.generate import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
