"""The schedules that a plan can name, and the checked schedule of a plan."""
