"""Costs and savings of modules' own rows: on the host, in executed work, and in steps on devices."""
