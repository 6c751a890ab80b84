"""Set-up before jax starts: the devices of this process, and its place among the processes of the run.

`mmjax.cli.command.run` calls it before a command's work; `mmjax.commands.launch` reads the same variables.
"""
