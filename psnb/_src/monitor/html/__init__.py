"""Static HTML: tables, and summaries of coordinators for pages without scripts."""
