"""Chat templates: templates of mmjax, and templates that published tokenizers come with, rendered within limits."""
