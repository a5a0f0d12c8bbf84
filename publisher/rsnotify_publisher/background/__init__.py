"""The background work of a Publisher: leader election, documents, push, schedules, threads."""
