"""WebSub: subscribing at hubs, and receiving what they post."""
