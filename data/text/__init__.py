"""Tokenizers, chat templates, and the layout of media among tokens: from records to token ids."""
