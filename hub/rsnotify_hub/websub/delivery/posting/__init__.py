"""A small HTTP/1.1 client for POST requests over kept connections.

It knows neither topics nor subscriptions: bytes go out, an `HttpReply` comes back.
"""
