"""The costs of modules: layers as kernels, modules as layers, and the loads that rows of data bring to them."""
