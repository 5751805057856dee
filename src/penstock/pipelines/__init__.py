"""What runs on the change log: declared aggregates, seeded, applied exactly once, audited."""
