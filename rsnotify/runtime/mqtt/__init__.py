"""MQTT, for whoever publishes or hears fragments through a broker (docs/mqtt.md).

`names` and `framing` are rules without I/O. The rest works on the event loop, which nothing else
of this package does but for the command line; so nothing else of this package imports it.
"""
