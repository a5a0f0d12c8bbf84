"""The documents of a Source as files in a folder, which any web server can serve."""
