"""The notebook's side of scheduling: coordinator, queue, connections, membership, remote values."""
