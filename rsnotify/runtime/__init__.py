"""I/O shared by all packages: commands, settings, HTTP, MQTT, WebSockets, threads and files."""
