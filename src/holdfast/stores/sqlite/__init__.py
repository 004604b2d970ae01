"""The SQLite store: one `events.db` per place, and a directory for large payloads beside it."""
