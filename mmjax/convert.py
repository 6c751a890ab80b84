"""`python -m mmjax.convert`; the command is in `mmjax.commands.convert`."""

from mmjax import cli
from mmjax.commands.convert import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
