"""Deliveries to callbacks: what each lacks, in turns that are fair to all, on kept connections."""
