"""Chat templates: those of mmjax, and those that published tokenizers come with, rendered within limits."""
