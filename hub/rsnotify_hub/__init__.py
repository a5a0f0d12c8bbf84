"""The hub: accepts changes from Sources, stores them durably, and pushes them to Destinations.

Fragments arrive over HTTP (`websub`), WebSockets (`websocket`) and MQTT (`mqtt_bridge`). `intake`
reads and checks them. The log of each topic (`topic_log`) stores them, and passes them on to
callbacks (`websub`), to WebSockets and event streams (`live`), and to brokers (`bridging`). `hub`
connects these parts, and `application` serves them over HTTP.
"""
