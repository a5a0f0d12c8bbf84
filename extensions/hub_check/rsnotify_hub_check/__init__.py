"""Checks over HTTP whether any WebSub hub conforms to the W3C Recommendation.

The suite acts as a publisher and as several subscribers: it serves its own topics and callbacks,
sends requests to the hub, and checks the responses and deliveries. It knows nothing about the
internals of any hub, and imports nothing from `rsnotify_hub`.
"""
