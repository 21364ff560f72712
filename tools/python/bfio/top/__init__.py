"""bfio-top: shows a cluster in a terminal (docs/guides/workers.md#watch-it)."""
