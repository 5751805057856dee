"""Polling: changes read with SQL functions, for servers that allow no replication connection."""
