"""Exports what a hub stores to a file, and imports it into any store."""
