"""What modules take: tables of their candidate layouts by the load of a replica, and how replicas share a step."""
