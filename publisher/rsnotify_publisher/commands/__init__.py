"""The publisher's subcommands of `rsnotify`."""
