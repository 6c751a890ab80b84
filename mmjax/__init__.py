"""mmjax: multimodal language models in JAX, every module on a mesh with a layout of its own."""

__version__ = "0.1.0"
