"""`python -m rsnotify`."""

from rsnotify.runtime.command_line import main

main()
