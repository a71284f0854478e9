"""JSON schemas of everything gpulatch writes for others to read."""
