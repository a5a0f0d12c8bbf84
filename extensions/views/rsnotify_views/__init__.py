"""Views of a Source's changes: IIIF Change Discovery, and Linked Data Event Streams."""
