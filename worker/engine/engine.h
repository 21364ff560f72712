// The decode engine: what a worker computes between two barriers. One interface to the sim, CPU and CUDA
// engines. The step loop (worker/link) admits and cancels requests at step boundaries and calls Step once per
// step. The engine owns the KV cache and enforces its own limits. Threads: an engine is used only by the
// thread of its step loop. This module builds and is tested without gRPC. Units: lengths and loads in tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/cost/batch_time.h"
#include "common/cost/prompt_work.h"

namespace bfio::worker {

// Identifies a request on the link between router and worker; chosen by the router.
using Handle = uint64_t;

// Upper bound of the tokens that any engine computes in one step.
inline constexpr int64_t kMaxStepTokens = 1 << 20;

struct EngineLimits {
  // B: the most requests that are active at the same time.
  int32_t slots = 0;
  int64_t kv_tokens = 0;
  // The most tokens of one request, prompt and output together.
  int64_t max_sequence_tokens = 0;
};

// Upper bound of Sampling::logprobs.
inline constexpr int32_t kMaxLogprobs = 20;

struct Sampling {
  // 0: greedy sampling.
  double temperature = 0;
  double top_p = 1;
  std::optional<int32_t> top_k;
  uint64_t seed = 0;
  // If set, the step's output has this many of the most likely tokens for each token.
  std::optional<int32_t> logprobs;
};

// One of the most likely tokens at the position of a generated one.
struct TopToken {
  uint32_t id = 0;
  // As StepOutput::log_probabilities.
  float logprob = 0;
  friend bool operator==(const TopToken&, const TopToken&) = default;
};

struct SequenceRequest {
  Handle handle = 0;
  // Empty for synthetic load: then only prompt_length is given, and the engine generates deterministic token
  // ids.
  std::vector<uint32_t> prompt;
  int64_t prompt_length = 0;
  // Upper bound of the tokens to generate, at least 1.
  int64_t max_new_tokens = 0;
  std::vector<uint32_t> stop_token_ids;
  bool ignore_eos = false;
  // A scheduler that orders by priority serves larger values first.
  int32_t priority = 0;
  // Steps that the request had waited when it was placed. A scheduler that orders by urgency serves larger
  // values of the same priority first.
  int64_t waited_steps = 0;
  Sampling sampling;
  // False: KV for the prompt and max_new_tokens is reserved on admission. True: KV is reserved for the tokens
  // that the request holds, and for one more in each step. When KV runs out, such requests are preempted
  // (StepOutput::preempted).
  bool kv_on_demand = false;
  // Index of the first token generated here: 0, or the number of tokens delivered before a replay. The same
  // request gives the same tokens at the same indices on every worker and in every batch.
  int64_t first_index = 0;
};

enum class FinishCause { kLength, kStop };

struct StepOutput {
  struct Token {
    Handle handle;
    uint32_t id;
  };
  struct Finish {
    Handle handle;
    FinishCause cause;
  };
  struct Failure {
    Handle handle;
    // The reason, for the request's client.
    std::string message;
  };
  // At most one token per active request and step, in a fixed order of requests. With chunked prefill a
  // request has no token in the steps before the last chunk of its prompt. In a chain of servers it may have
  // its first token a step later (worker/engine/decode/decode_engine.h).
  std::vector<Token> tokens;
  // Requests whose last token is in `tokens`; their KV is free when Step returns.
  std::vector<Finish> finished;
  // Requests that the step could not continue: the model gave no finite logits for them. They have no token
  // in this step, are removed when Step returns and do not count in load_tokens; other requests are not
  // affected. The sim engine, which computes nothing, fails requests whose prompt contains kSimPoisonToken.
  std::vector<Failure> failed;
  // Requests that were preempted before the step because KV did not suffice for it: as few as necessary, the
  // last admitted first, and only those whose KV is reserved on demand (SequenceRequest::kv_on_demand). They
  // have no token in this step and are removed. To continue one, admit it again with its generated tokens as
  // part of the prompt: it gets the same tokens. The first admitted is never preempted for a later one, and a
  // request with all its KV reserved always finishes, so the engine always makes progress.
  std::vector<Handle> preempted;
  // For tokens[i]: the probability that the next token ends the sequence. Empty when the engine gives no
  // hints.
  std::vector<float> completion_hints;
  // For tokens[i]: the natural logarithm of the probability that the model gave this token, before
  // temperature and truncation. Empty when the engine has no model.
  std::vector<float> log_probabilities;
  // For requests with log-probabilities (Sampling::logprobs): the index in `tokens`, ascending, and the most
  // likely tokens, the most likely first; among equals the smaller id.
  struct Alternatives {
    size_t token = 0;
    std::vector<TopToken> top;
  };
  std::vector<Alternatives> alternatives;
  // L_g, the sum over the active requests of s + g: the whole prompt from the first step on, plus the g
  // tokens generated before this step. If every prompt takes one step, that is s + j - 1 in a request's j-th
  // step. A request whose prompt takes p steps counts s in each of them, although its KV is not complete: the
  // rest of the prompt is work for this worker, so the router must not treat it as free capacity. Such a
  // request therefore counts p - 1 tokens less than one that grows by one token per step; prefill_state()
  // lists it until its prompt is computed.
  int64_t load_tokens = 0;
  // Prompt tokens computed in the step: the sum of the chunks, not of the whole prompts.
  int64_t prefill_tokens = 0;
  // What the step's time depends on: prompt tokens, decodes, and the context tokens that they attend to.
  BatchLoad batch;

  void Clear() {
    tokens.clear();
    finished.clear();
    failed.clear();
    preempted.clear();
    completion_hints.clear();
    log_probabilities.clear();
    alternatives.clear();
    load_tokens = 0;
    prefill_tokens = 0;
    batch = BatchLoad();
  }
};

// A request that has not generated a token here yet.
struct PendingPrompt {
  Handle handle = 0;
  // Prompt tokens that are not computed yet; at least 1.
  int64_t tokens = 0;

  friend bool operator==(const PendingPrompt&, const PendingPrompt&) = default;
};

// Prompts of an engine with chunked prefill.
struct PrefillState {
  // Upper bound of the next step's tokens, prompts and decodes together.
  int64_t token_budget = 0;
  // In the order of admission.
  std::vector<PendingPrompt> prompts;

  int64_t pending_tokens() const {
    int64_t tokens = 0;
    for (const PendingPrompt& prompt : prompts) tokens += prompt.tokens;
    return tokens;
  }
  friend bool operator==(const PrefillState&, const PrefillState&) = default;
};

struct ResidentSequence {
  Handle handle = 0;
  // Its load in the next step: prompt + generated tokens.
  int64_t kv_tokens = 0;
  // Since it was placed on this worker.
  int64_t generated_tokens = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // "sim", "cpu" or "cuda".
  virtual absl::string_view name() const = 0;
  virtual const EngineLimits& limits() const = 0;
  // Whether it computes log-probabilities; if not, Admit refuses requests that need them.
  virtual bool computes_logprobs() const { return false; }

  // Takes a request; its first step is the next one. RESOURCE_EXHAUSTED: no slot or KV is free now. KV for
  // prompt + output is reserved (with kv_on_demand, for the prompt only), so a running request never runs
  // out. INVALID_ARGUMENT: it can never run here. ALREADY_EXISTS: the handle is in use.
  virtual absl::Status Admit(const SequenceRequest& request) = 0;

  // Drops a request and frees its slot and KV. False when the handle is unknown.
  virtual bool Cancel(Handle handle) = 0;

  // Runs one step: local compute only, no communication. Clears and fills `out`. An idle engine's step is
  // legal and takes the time of an empty batch. An error means that the engine is permanently broken; a
  // failure of one request ends only that request (StepOutput::failed).
  virtual absl::Status Step(StepOutput& out) = 0;

  // From the next step on, computes as many prompt tokens as the level allows, within the engine's own
  // budget; without a level, as many as the budget allows. Engines without chunked prefill ignore it.
  virtual void SetPrefillLevel(const std::optional<PrefillLevel>& /*level*/) {}
  // Absent where the first token comes in a request's first step, because prompts are computed whole.
  virtual std::optional<PrefillState> prefill_state() const { return std::nullopt; }

  virtual int32_t active() const = 0;
  virtual int32_t free_slots() const = 0;
  // KV tokens that are not reserved.
  virtual int64_t free_kv_tokens() const = 0;
  virtual std::vector<ResidentSequence> resident() const = 0;
};

}  // namespace bfio::worker
