"""The modules of a model: encoders, projectors, the language-model backbone, generators.

Each is a `Module` of pieces (`mmjax.models.structure`); `mmjax.models.model.model_modules` builds all of a model.
"""
