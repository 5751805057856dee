"""From logged bytes to typed columns. Pure."""
