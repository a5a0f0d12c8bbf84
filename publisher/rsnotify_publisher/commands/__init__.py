"""The subcommands of `rsnotify` that the publisher offers."""
