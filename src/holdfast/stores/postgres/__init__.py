"""The PostgreSQL store: one schema of a database, shared by any number of machines."""
