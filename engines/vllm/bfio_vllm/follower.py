"""What a vLLM scheduler does to follow the router: a mixin over any of vLLM's v1 schedulers, without an import of vLLM.

Environment, read when the scheduler is made:
  BFIO_ROUTER            HOST:PORT of the router's worker port. Unset: vLLM schedules without a router.
  BFIO_ROUTER_SILENCE_S  seconds without a message from the router after which vLLM schedules without it; default 1.
  BFIO_ROUTER_TLS        ca=FILE,cert=FILE,key=FILE, as bfio_worker's --worker_tls; unset: no TLS.
"""
import collections
import logging
import os
import time

from bfio_vllm import budget
from bfio_vllm.link import EngineHello, EngineStep, RouterLink

logger = logging.getLogger("bfio_vllm")

# Versions of vLLM that it was tried with; with others it starts with a warning if they have what it needs.
TRIED = ("0.32.0",)
SILENCE_S = 1.0
# Requests that the router has placed here are named so.
ROUTERS_NAMES = "bfio-"
NEEDED = ("running", "waiting", "requests", "max_num_scheduled_tokens", "current_step", "max_model_len", "kv_cache_manager",
          "num_sampled_tokens_per_step", "scheduler_config", "vllm_config", "get_request_counts")


def settings(environment):
    """(address, silence_s, tls) of the environment; None where there is no router. ValueError: what is wrong."""
    address = environment.get("BFIO_ROUTER", "")
    if not address:
        return None
    text = environment.get("BFIO_ROUTER_SILENCE_S", str(SILENCE_S))
    try:
        silence_s = float(text)
    except ValueError:
        silence_s = 0.0
    if not 0.01 <= silence_s <= 3600:
        raise ValueError(f"BFIO_ROUTER_SILENCE_S={text}: must be a number of seconds within 0.01..3600")
    tls = {}
    for part in filter(None, environment.get("BFIO_ROUTER_TLS", "").split(",")):
        name, _, file = part.partition("=")
        tls[name] = file
    return address, silence_s, tls


def check_version(version, scheduler):
    """Warns of a version that was not tried; RuntimeError where the scheduler lacks what is needed."""
    base = version.split("+")[0]
    missing = [name for name in NEEDED if not hasattr(scheduler, name)]
    if missing:
        raise RuntimeError(f"bfio_vllm does not support vLLM {version}: its scheduler lacks {', '.join(missing)}. "
                           f"Tested versions: {', '.join(TRIED)}")
    if not getattr(scheduler.scheduler_config, "enable_chunked_prefill", False):
        raise RuntimeError("bfio_vllm needs chunked prefill (--enable-chunked-prefill), because the "
                           "router allots less than a whole prompt to a step")
    if base not in TRIED:
        logger.warning("bfio_vllm was not tested with vLLM %s, only with %s", version, ", ".join(TRIED))


class FollowsRouter:
    """Before the scheduler class in the bases. The engine's thread alone calls it; the stream has its own (RouterLink)."""

    # Of vLLM; the tests' have another.
    vllm_version = ""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._bfio = None
        found = settings(os.environ)
        if found is None:
            logger.warning("BFIO_ROUTER is not set, so vLLM schedules without a router")
            return
        check_version(self.vllm_version, self)
        address, silence_s, tls = found
        parallel = self.vllm_config.parallel_config
        rank = getattr(parallel, "data_parallel_index", None) or parallel.data_parallel_rank
        self._bfio_own_budget = self.max_num_scheduled_tokens
        # Steps that are under way: (scheduler output, report, when it was formed).
        self._bfio_steps = collections.deque()
        self._bfio_ended, self._bfio_ended_at = 0, float("-inf")
        self._bfio = RouterLink(address, EngineHello(engine=f"vllm {self.vllm_version}", rank=rank,
                                                     token_budget=self._bfio_own_budget), silence_s, tls)

    def schedule(self, *args, **kwargs):
        if self._bfio is None:
            return super().schedule(*args, **kwargs)
        formed_at = time.monotonic()
        number, allotment = self._bfio.allotment()
        rows = {}
        for request in self.running:
            if not budget.is_prompt(request):
                rows[request.request_id] = budget.decode_rows(request, self.current_step + 1, self.max_model_len,
                                                              self.num_sampled_tokens_per_step)
        if allotment is None:
            output = super().schedule(*args, **kwargs)
        else:
            ordered = budget.decodes_first(self.running)
            if ordered is not self.running:
                self.running[:] = ordered
            self.max_num_scheduled_tokens = budget.step_budget(self._bfio_own_budget, sum(rows.values()), allotment)
            try:
                # Without arguments: vLLM's own cadence of prompts (--prefill-schedule-interval) is the router's matter now.
                output = super().schedule()
            finally:
                self.max_num_scheduled_tokens = self._bfio_own_budget
        if output.total_num_scheduled_tokens > 0:
            step = self._bfio_describe(output, rows)
            step.allotment, step.followed = number, allotment is not None
            self._bfio_steps.append((output, step, formed_at))
        return output

    def update_from_output(self, scheduler_output, *args, **kwargs):
        result = super().update_from_output(scheduler_output, *args, **kwargs)
        # Steps end in the order in which they were formed; one that vLLM has thrown away does not end.
        while self._bfio is not None and any(output is scheduler_output for output, _, _ in self._bfio_steps):
            output, step, formed_at = self._bfio_steps.popleft()
            if output is scheduler_output:
                self._bfio_end(step, formed_at)
        return result

    def shutdown(self, *args, **kwargs):
        if self._bfio is not None:
            self._bfio.close()
        return super().shutdown(*args, **kwargs)

    def _bfio_describe(self, output, decodes):
        """What the step computes; the schedulers' accounts have it as computed already."""
        step = EngineStep()
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            done = request.num_computed_tokens - tokens
            if name in decodes:
                step.decodes += 1
                step.decode_tokens += tokens
                step.decode_context += done
                continue
            step.prompt_tokens += tokens
            if name.startswith(ROUTERS_NAMES):
                step.prompts.add(request_id=name, done=done, computed=tokens, left=_left(request))
        step.cached_tokens = sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
        step.pending_prompt_tokens = (sum(_left(request) for request in self.running)
                                      + sum(_left(request) for request in self.waiting))
        return step

    def _bfio_end(self, step, formed_at):
        now = time.monotonic()
        self._bfio_ended += 1
        step.step = self._bfio_ended
        step.step_ns = int(1e9 * max(0.0, now - max(self._bfio_ended_at, formed_at)))
        self._bfio_ended_at = now
        cache = self.kv_cache_manager
        # One block is nobody's.
        tokens = (cache.block_pool.num_gpu_blocks - 1) * self.vllm_config.cache_config.block_size
        step.kv_capacity_tokens, step.kv_tokens = tokens, round(cache.usage * tokens)
        step.running, step.waiting = self.get_request_counts()
        self._bfio.report(step)


def _left(request):
    """Prompt tokens that are still to be computed. Of a request that decodes one token is, or is on its way: none."""
    left = request.num_tokens - request.num_computed_tokens
    return left if left > 1 or request.num_computed_tokens < request.num_prompt_tokens else 0
