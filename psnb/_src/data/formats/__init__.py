"""Readers of file formats: pure, picklable descriptions that turn a path into chunks of columns."""
