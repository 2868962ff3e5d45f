"""Charts: the curves of runs, and figures of them."""
