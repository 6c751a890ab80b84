"""`python -m mmjax.serve_data`; the command is in `mmjax.commands.serve_data`."""

from mmjax import cli
from mmjax.commands.serve_data import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
