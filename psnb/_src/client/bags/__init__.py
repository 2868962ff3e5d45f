"""Bags of ids: their rows combined, here or on the servers, and gradients of that."""
