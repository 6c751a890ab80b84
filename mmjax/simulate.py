"""`python -m mmjax.simulate`; the command is in `mmjax.commands.simulate`."""

from mmjax import cli
from mmjax.commands.simulate import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
