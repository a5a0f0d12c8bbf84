"""`rsnotify demo`: a live Source, a hub and a Destination on this machine, to watch."""

from rsnotify.commands.demo.command import demo

__all__ = ["demo"]
