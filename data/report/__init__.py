"""Description of a data set: statistics, comparison of grouping policies, suggested capacities."""
