"""Which resources a copy holds, and which representation of each. Nothing here does I/O."""
