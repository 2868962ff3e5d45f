"""What models of all frameworks share: rows of a batch, flat variables, few sizes."""
