"""The adapters, one for each origin protocol."""
