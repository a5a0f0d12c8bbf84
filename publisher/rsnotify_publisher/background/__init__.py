"""The work of a started Publisher: leader election, documents and pushing, schedules, threads."""
