"""Which rows leave a table, and how their places are taken. Pure."""
