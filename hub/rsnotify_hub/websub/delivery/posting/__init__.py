"""POST to many callbacks over connections that are kept, at little cost for each.

It knows HTTP, and neither topics nor subscriptions: bytes go out, a `Reply` comes back.
"""
