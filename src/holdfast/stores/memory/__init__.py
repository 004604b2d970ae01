"""The memory store: `store` is its face, `database` what it holds."""
