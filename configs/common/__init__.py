"""What every package uses: errors, checks of fields, strict JSON, whole files, and how values and tables are shown."""
