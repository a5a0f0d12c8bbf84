"""WebSub: subscriptions at hubs, and the callbacks to which hubs deliver."""
