"""The work of a started Publisher: leadership, threads, schedules, polling."""
