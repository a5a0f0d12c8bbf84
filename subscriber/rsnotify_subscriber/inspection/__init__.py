"""Inspecting what a Source offers."""
