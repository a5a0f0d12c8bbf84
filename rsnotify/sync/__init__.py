"""The state machine of a Destination. It turns events into actions, and does no I/O."""
