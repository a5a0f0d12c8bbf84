"""The admin API: what the hub is doing, as JSON, and what a person on call may do about it."""
