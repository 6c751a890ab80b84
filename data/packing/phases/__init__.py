"""Phase rows, the rows of its own that a plan gives a module: which item lies where, and the arrays in these rows."""
