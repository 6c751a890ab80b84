"""What rows of their own cost and save: on the host, in executed work, and in steps on devices."""
