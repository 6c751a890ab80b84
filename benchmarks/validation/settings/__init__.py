"""What a published run is, the settings that it is simulated at, and the kernels of its framework."""
