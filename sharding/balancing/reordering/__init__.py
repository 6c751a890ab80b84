"""The order of a global batch's rows that makes a plan's step short (DistTrain, arXiv 2408.04275, section 6)."""
