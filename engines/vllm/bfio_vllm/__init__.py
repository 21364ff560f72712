"""vLLM under a bfio router: python -m ... --scheduler-cls=bfio_vllm.scheduler.BfioScheduler (docs/guides/vllm.md)."""
