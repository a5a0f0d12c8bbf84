"""Access control: grants for publishers and admins, rate limits, and clients behind proxies."""
