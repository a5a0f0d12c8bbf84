"""Audits: comparing a copy with the resources that the Source lists."""
