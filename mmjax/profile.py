"""`python -m mmjax.profile`; the command is in `mmjax.commands.profile`."""

from mmjax import cli
from mmjax.commands.profile import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
