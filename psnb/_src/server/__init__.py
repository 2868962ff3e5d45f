"""What runs inside a server process: shards, tables, optimizers and initializers."""
