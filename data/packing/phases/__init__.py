"""Rows of its own for a module: which item lies where, and the arrays in these rows."""
