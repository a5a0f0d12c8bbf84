"""The pictures of the documentation: pages in a real browser, and commands in a real terminal."""
