"""Signs of life that the processes of a run give each other."""
