"""Shared code that does I/O: the command line, configuration files, threads, processes, MQTT."""
