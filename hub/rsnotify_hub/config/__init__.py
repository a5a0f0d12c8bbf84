"""Where settings come from: a file, the environment and options, and who is to blame for each."""
