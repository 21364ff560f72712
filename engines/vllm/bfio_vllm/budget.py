"""How many tokens a step of vLLM's scheduler may have so that its prompts get the router's allotment: pure, no vLLM."""


def is_prompt(request):
    """Whether the tokens that a running request computes next are its prompt's (or, after a preemption, what it had)."""
    return request.is_prefill_chunk


def decode_rows(request, step, max_model_len, sampled_per_step):
    """Tokens that vLLM's scheduler will give a running request that decodes, in its step number `step`; 0: none.

    The conditions are those of Scheduler.schedule. A row too many here would go to a prompt beyond the allotment.
    """
    placeholders = request.num_output_placeholders
    if placeholders > 0 and request.num_computed_tokens + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens:
        return 0  # asynchronous scheduling: the step under way generates its last token
    if step < getattr(request, "next_decode_eligible_step", 0):
        return 0
    rows = request.num_tokens_with_spec + placeholders - request.num_computed_tokens
    return max(0, min(rows, max_model_len - request.num_computed_tokens - sampled_per_step))


def decodes_first(running):
    """`running` with decodes before prompts, each in their order; the same object where they are.

    vLLM spends a step's tokens in the order of its list. A prompt before a decode would take the decode's row.
    """
    prompt = False
    for request in running:
        if is_prompt(request):
            prompt = True
        elif prompt:
            return [r for r in running if not is_prompt(r)] + [r for r in running if is_prompt(r)]
    return running


def step_budget(own, rows, allotment):
    """Tokens of the next step: all decodes' `rows`, and prompts up to the allotment; never more than `own`, vLLM's limit.

    A step that could compute nothing would be repeated at once, forever: without decodes at least one token is computed.
    """
    if rows == 0:
        allotment = max(allotment, 1)
    return min(own, rows + allotment)
