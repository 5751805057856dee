"""`penstock demo`: the whole pipe on a small notification service, in one command."""
