"""Long-lived connections that receive a topic: first the log, then each fragment immediately."""
