"""Whether documents and packages keep the rules, and `rsnotify validate`."""
