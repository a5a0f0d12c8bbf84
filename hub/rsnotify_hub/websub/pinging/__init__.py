"""Plain WebSub pings: the hub fetches a topic, and appends to its log what is new."""
