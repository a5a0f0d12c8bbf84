"""WebSub (W3C REC 2018-01-23): forms and pings in, verified subscriptions, callbacks out."""
