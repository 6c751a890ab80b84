"""The commands, one a file: `python -m mmjax.train` runs `mmjax.commands.train`."""
