"""What Penstock says to PostgreSQL and what it hears: pure protocol, one socket, one catalog."""
