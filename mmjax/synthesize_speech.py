"""`python -m mmjax.synthesize_speech`; the command is in `mmjax.commands.synthesize_speech`."""

from mmjax import cli
from mmjax.commands.synthesize_speech import COMMAND

if __name__ == "__main__":
    cli.run(COMMAND)
