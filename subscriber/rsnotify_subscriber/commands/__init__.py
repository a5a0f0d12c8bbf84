"""The commands `follow`, `audit`, `inspect` and `validate`: options, output and exit codes."""
