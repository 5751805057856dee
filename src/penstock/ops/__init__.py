"""Operating Penstock: set-up, tear-down, doctor."""
