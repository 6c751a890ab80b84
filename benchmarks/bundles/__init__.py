"""What bundles of a colocated encoder's and backbone's programs hide, compiled for H100s without one."""
