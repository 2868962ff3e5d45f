"""Models of all frameworks on parameter servers: placing, flat variables, rows of a batch."""
