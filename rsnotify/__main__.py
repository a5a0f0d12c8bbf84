"""`python -m rsnotify`."""

from rsnotify.runtime.cli.application import main

main()
