"""The commands `follow` and `audit`: their options, output and exit codes."""
