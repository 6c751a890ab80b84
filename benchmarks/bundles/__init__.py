"""Communication that bundles of an encoder's and a backbone's programs hide, compiled for H100s without one."""
