"""What every op of a plan's step costs: its stages, the replicas that share them, their weights, the hops between."""
