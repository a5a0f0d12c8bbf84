"""MQTT for publishers and subscribers of fragments (docs/mqtt.md).

`topics` and `framing` are rules without I/O; the other modules run on the event loop.
"""
