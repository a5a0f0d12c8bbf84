"""Validating documents and packages, from files and over HTTP."""
