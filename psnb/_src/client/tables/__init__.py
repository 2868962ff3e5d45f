"""What is in a whole table of a server, read and searched piece by piece, and marks of all."""
