"""The hub: takes changes from Sources, keeps them durably, and pushes them to Destinations.

Handlers decide (`websub`, `websocket`), channels deliver (`delivery`, `websocket_channel`),
the store keeps (`sqlite_store`); `topics` joins them, and `hub` puts everything together. The
decisions themselves stand without I/O in `fragments`, `channel_lists`, `subscriptions`,
`websub_forms`, `frames` and `grants`.
"""
