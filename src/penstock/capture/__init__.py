"""From the replication stream to the change log, and back to Postgres: what may be forgotten."""
