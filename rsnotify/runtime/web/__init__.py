"""Requests and responses as values, and how ASGI and WSGI servers exchange them."""
