"""The hub: accepts changes from Sources, stores them durably, and pushes them to Destinations.

Handlers accept requests (`websub`, `websocket`, `mqtt.inbox`), the log stores fragments and passes
them on (`log`), and delivery channels send them (`websub.channel`, `websocket.subscribers`,
`bridging.bridge`). `hub` connects these parts, and `application` serves them over HTTP. The
decisions are made without I/O, for example in `log.fragments`, `subscriptions`, `websub.forms`,
`websub.pinging.channel_lists`, `websocket.frames` and `access.grants`.
"""
