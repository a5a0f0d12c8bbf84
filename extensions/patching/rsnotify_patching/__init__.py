"""JSON and XML patches (core §14.4), which a Destination looks up by media type."""
