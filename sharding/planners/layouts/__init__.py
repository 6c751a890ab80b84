"""Layouts of modules on devices of their own: the exact search, its relaxation, estimates, and the plans of them."""
