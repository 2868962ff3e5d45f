"""What a server writes and reads of checkpoints. Pure."""
