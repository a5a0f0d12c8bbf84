"""The dashboard at `/`: the live state of the hub."""
