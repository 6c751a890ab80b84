"""`python -m mmjax.draw_clips`; the command is in `mmjax.commands.draw_clips`."""

from mmjax import cli
from mmjax.commands.draw_clips import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
