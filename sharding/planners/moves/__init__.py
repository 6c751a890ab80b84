"""Single changes of a plan, and the search by them: what a person would try by hand in a plan file."""
