"""mmjax on one Hopper GPU: kernels' correctness, training steps of mmjax and PyTorch, attention, collective matmuls."""
