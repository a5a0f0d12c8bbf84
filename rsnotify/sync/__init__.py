"""The follower state machine, which keeps a Destination in sync: events in, actions out, no I/O."""
