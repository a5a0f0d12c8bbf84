"""Exports a hub's subscriptions and contents to a file, and imports them into any store."""
