"""What modules' specs are made of: layers as kernels, their loads, and the stack of layers of one module."""
