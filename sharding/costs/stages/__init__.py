"""Costs of every op of a plan's step: its stages, the replicas that share them, their weights, the hops between."""
