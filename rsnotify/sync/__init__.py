"""How a Destination stays in sync: the follower state machine, events in, actions out. No I/O."""
