"""The hub: takes changes from Sources, keeps them durably, and pushes them to Destinations.

Handlers decide (`websub`, `websocket`), the log keeps and hands on (`log`), channels deliver
(`websub.channel`, `websocket.subscribers`); `hub` puts everything together, and `serving` puts
it on the network. The decisions themselves stand without I/O, such as `log.fragments`,
`subscriptions`, `websub.forms`, `websub.pinging.channel_lists`, `websocket.frames` and
`access.grants`.
"""
