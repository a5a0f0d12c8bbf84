"""WebSub (W3C REC 2018-01-23): publishing, pings, verified subscriptions, and deliveries."""
