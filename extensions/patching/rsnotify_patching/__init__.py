"""Patches of JSON and XML (core §14.4), each offered to a Destination by its media type."""
