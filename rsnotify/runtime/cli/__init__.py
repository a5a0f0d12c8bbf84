"""The command line: the application `rsnotify`, and what its subcommands share."""
