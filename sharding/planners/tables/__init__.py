"""Tables of the costs of modules' candidate layouts by the load of a replica, and how replicas share a step."""
