"""The page at `/`: what a person on call wants to see, live."""
