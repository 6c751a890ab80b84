"""The Python interface: what `import mmjax` offers, a few calls for all that a command does."""
