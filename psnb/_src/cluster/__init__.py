"""Clusters: a local one with roles, a running one, the roles of workers, and scaling."""
