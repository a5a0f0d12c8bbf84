"""JSON and XML patch formats (core §14.4), which a Destination looks up by media type."""
