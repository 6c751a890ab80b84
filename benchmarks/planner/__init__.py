"""How fast the planner is, how near to the optimum, and DistTrain's models simulated."""
