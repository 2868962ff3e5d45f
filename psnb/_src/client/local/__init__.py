"""What closures read and write in place of the servers, or in front of them."""
