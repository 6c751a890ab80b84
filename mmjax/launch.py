"""`python -m mmjax.launch`; the command is in `mmjax.commands.launch`."""

from mmjax import cli
from mmjax.commands.launch import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
