"""Where the shards of a strategy are: the layout, and how every process gets to know it."""
