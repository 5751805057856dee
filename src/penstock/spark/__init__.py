"""The Spark source: reads the change log, never the socket."""
