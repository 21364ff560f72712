"""The class for vLLM's --scheduler-cls: vLLM's asynchronous scheduler, following a bfio router (follower.py)."""
import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from bfio_vllm.follower import FollowsRouter


class BfioScheduler(FollowsRouter, AsyncScheduler):
    vllm_version = vllm.__version__
