"""The adapters, one for each protocol of origins."""
