"""From the journal to the hubs: what each is sent next, and how."""
