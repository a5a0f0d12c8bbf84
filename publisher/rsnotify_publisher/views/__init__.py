"""Views: the changes of a Source in formats of other ecosystems; pure."""
