"""The modules of a model: encoders, projectors, the language-model backbone, generators."""
