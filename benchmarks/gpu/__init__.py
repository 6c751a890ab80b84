"""mmjax on one Hopper GPU: correctness of kernels, a training step beside PyTorch's, attention, collective matmuls."""
