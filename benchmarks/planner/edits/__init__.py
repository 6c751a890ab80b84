"""Random single-field edits of chosen plans: whether a change that a person would try by hand shortens a step."""
