"""The change memory: the logs as standard Change Lists, for when a Source cannot be asked."""
