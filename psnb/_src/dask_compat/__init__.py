"""What psnb needs of Dask beyond its documented interface: all of it is here, and nowhere else.

Dask may change any of this in any release. Each function says what it relies on; if a release
breaks it, only this room changes. It imports nothing of psnb.
"""

TESTED = ("2026.3.0", "2026.8.0")
"""The oldest and the newest release with which the tests pass (``make test-oldest``)."""
