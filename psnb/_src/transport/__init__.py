"""Messages between processes: streams over Dask's connections, and shared memory on one host."""
