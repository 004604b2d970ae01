"""The memory store: `store` is its face, `bank` what it holds."""
