"""Plain WebSub pings: the hub fetches a topic itself, and tells what of it is news."""
