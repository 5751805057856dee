"""`penstock init`: looks at a database and writes a `penstock.toml` for it, with comments."""
