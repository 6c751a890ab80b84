"""Published architectures: rules that match tensors with parameters, and conversions of config.json in both directions.

`mmjax.weights.registry` finds every `PUBLISHED` tuple in the modules of this package.
"""
