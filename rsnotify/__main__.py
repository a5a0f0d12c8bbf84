"""`python -m rsnotify`."""

from rsnotify.cli import main

main()
