"""Running one cell: its code, its output, its calls to the host, what is shown of its value."""
