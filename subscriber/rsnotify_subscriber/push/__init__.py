"""Hearing of changes from hubs: what keeps one transport connected, and the transports."""
