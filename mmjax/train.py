"""`python -m mmjax.train`; the command is in `mmjax.commands.train`."""

from mmjax import cli
from mmjax.commands.train import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
