"""Shared code that does I/O: commands, configuration files, threads, processes, MQTT, extensions."""
