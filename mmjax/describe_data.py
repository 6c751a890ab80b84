"""`python -m mmjax.describe_data`; the command is in `mmjax.commands.describe_data`."""

from mmjax import cli
from mmjax.commands.describe_data import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
