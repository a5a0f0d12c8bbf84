"""Views of closed Change Lists: IIIF Change Discovery, and Linked Data Event Streams."""
