"""The state machine that keeps a Destination in sync: events in, actions out, no I/O."""
