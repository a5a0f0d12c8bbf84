"""Shared code that does I/O: commands, settings, threads, processes, MQTT, extensions."""
