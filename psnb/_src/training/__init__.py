"""Training from beginning to end: the trainer, its device workers and callbacks."""
