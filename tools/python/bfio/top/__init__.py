"""bfio-top: shows a cluster in a terminal (docs/operations.md#bfio-top)."""
