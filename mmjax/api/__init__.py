"""The functions and classes of the Python interface, which `import mmjax` imports when their names are first used.

A call of one of them does what a command does; the commands themselves are in `mmjax.commands`.
"""
