"""One module for each peer, psnb among them; each is the main module of a process of its own."""
