"""Planners: what is to be planned in, plans out; one file a policy."""
