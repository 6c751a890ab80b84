"""`python -m mmjax.verify`; the command is in `mmjax.commands.verify`."""

from mmjax import cli
from mmjax.commands.verify import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
