"""What ends a process for its memory, and how it stays below."""
