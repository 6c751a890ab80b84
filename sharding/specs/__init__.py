"""What modules cost: layers as kernels, modules as layers, and the loads that rows of data bring to them."""
