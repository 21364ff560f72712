// The decode engine: what a worker does between two barriers.
//
// Purpose: one interface over the sim, CPU and CUDA engines. The step loop (worker/link) admits and cancels
// requests at step boundaries and calls Step once per step; the engine keeps the KV cache and enforces its
// own limits.
//
// An engine either steps by itself (Step), or together with the group's other ranks (together(): NextRows on
// all ranks, then StepTogether), where the ranks share a model's MLP out among them.
//
// Threads: an engine belongs to its step loop's thread. Builds and tests alone, without gRPC.
//
// Units: lengths and loads in tokens.
#ifndef BFIO_WORKER_ENGINE_ENGINE_H_
#define BFIO_WORKER_ENGINE_ENGINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/cost/batch_time.h"
#include "common/cost/prompt_work.h"

namespace bfio::worker {

class StepPeers;

// The router's name of a request on the link.
using Handle = uint64_t;

// No engine computes more tokens than these in a step.
inline constexpr int64_t kMaxStepTokens = 1 << 20;

struct EngineLimits {
  // B: requests decoding at once.
  int32_t slots = 0;
  int64_t kv_tokens = 0;
  // Largest prompt + output of one request.
  int64_t max_sequence_tokens = 0;
};

struct Sampling {
  // 0 is greedy.
  double temperature = 0;
  double top_p = 1;
  std::optional<int32_t> top_k;
  uint64_t seed = 0;
};

struct SequenceRequest {
  Handle handle = 0;
  // Empty for synthetic load; then prompt_length alone counts and the engine fills in deterministic ids.
  std::vector<uint32_t> prompt;
  int64_t prompt_length = 0;
  // Tokens to generate at most, at least 1.
  int64_t max_new_tokens = 0;
  std::vector<uint32_t> stop_token_ids;
  bool ignore_eos = false;
  // Larger is served first by a scheduler that goes by priority.
  int32_t priority = 0;
  // What is left for its first token, and a token every so often; seconds; absent: the engine's own. For an
  // engine that adapts its token budget to them (worker/scheduler/budget_tuner.h).
  std::optional<double> ttft_left_s, tpot_objective_s;
  Sampling sampling;
  // False: KV for its prompt and max_new_tokens is reserved. True: for what it holds, one more token per
  // step; when there is none left, requests of this kind are preempted (StepOutput::preempted).
  bool kv_on_demand = false;
  // Index of the first token generated here: 0, or how many were delivered before a replay. The same request
  // gives the same tokens at the same indices wherever and whenever it runs.
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
  // At most one token per active request and step, in a fixed order of requests. A request whose prompt takes
  // several steps (chunked prefill) gives none in the steps before its prompt's last, and some schedulers let
  // decodes wait for prompts (worker/scheduler/batch_scheduler.h).
  std::vector<Token> tokens;
  // Requests whose last token is in `tokens`; their KV is free when Step returns.
  std::vector<Finish> finished;
  // Requests that the step could not continue: the model gave no finite logits
  // for them. They made no token, are gone when Step returns, and count nothing in load_tokens; the others
  // are not affected. The sim engine computes nothing and has those whose prompt says so (kSimPoisonToken).
  std::vector<Failure> failed;
  // Requests that were preempted before the step, since KV did not suffice for it: of those whose KV grows
  // on demand (SequenceRequest::kv_on_demand) the ones admitted last, as few as necessary. They made no token
  // in the step and are gone. To continue one, admit it again with its generated tokens
  // as part of the prompt: it gets the same tokens. The earliest admitted of them is never preempted
  // for later ones, and a request with all its KV reserved always ends: so the engine always makes progress.
  std::vector<Handle> preempted;
  // By tokens[i]: probability that the next token ends the sequence. Empty when the engine gives no hints.
  std::vector<float> completion_hints;
  // By tokens[i]: natural logarithm of the probability that the model gave this token, before temperature and
  // truncation. Empty when the engine has no model.
  std::vector<float> log_probabilities;
  // L_g: what the active requests count in the step, each s + g: its prompt, whole from the first step on,
  // and the g tokens it had generated before the step. Where every prompt takes one step that is s + j - 1 in
  // the j-th step. A request whose prompt takes p steps counts s in each of them: what is left of the prompt
  // is work that this worker has to do, and the router shall not fill the gap up. So such a request counts p
  // - 1 tokens less than one that grows by one each step: prefill_state() names it until its prompt is
  // computed.
  int64_t load_tokens = 0;
  // Prompt tokens processed in the step: the chunks, not the whole prompts.
  int64_t prefill_tokens = 0;
  // What the step's time depends on: prompt tokens, decodes and what they attend to.
  BatchLoad batch;

  void Clear() {
    tokens.clear();
    finished.clear();
    failed.clear();
    preempted.clear();
    completion_hints.clear();
    log_probabilities.clear();
    load_tokens = 0;
    prefill_tokens = 0;
    batch = BatchLoad();
  }
};

// A request that has made no token here yet.
struct PendingPrompt {
  Handle handle = 0;
  // Of its prompt, not computed; at least 1.
  int64_t tokens = 0;

  friend bool operator==(const PendingPrompt&, const PendingPrompt&) = default;
};

// Of an engine that takes prompts in chunks.
struct PrefillState {
  // Tokens of the next step at most.
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
  // What it counts in the next step: prompt + generated tokens.
  int64_t kv_tokens = 0;
  // In this placement.
  int64_t generated_tokens = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // "sim", "cpu" or "cuda".
  virtual absl::string_view name() const = 0;
  virtual const EngineLimits& limits() const = 0;

  // Takes a request that starts in the next step. RESOURCE_EXHAUSTED: no slot or KV now (KV for prompt
  // + output is reserved, so a running request never runs out; with kv_on_demand, for the prompt);
  // INVALID_ARGUMENT: it can never run here; ALREADY_EXISTS.
  virtual absl::Status Admit(const SequenceRequest& request) = 0;

  // Drops a request and frees its slot and KV. False when the handle is unknown.
  virtual bool Cancel(Handle handle) = 0;

  // Runs one step: local compute only, no communication. Fills `out` (cleared first). An idle engine's step
  // is legal and takes the time of an empty batch. An error means that the engine is broken permanently; what
  // is wrong with one request ends that request (StepOutput::failed).
  virtual absl::Status Step(StepOutput& out) = 0;

  // Whether its steps are StepTogether's.
  virtual bool together() const { return false; }
  // What ranks that step together must have in common; 0: nothing.
  virtual uint64_t signature() const { return 0; }
  // The most that NextRows says.
  virtual int64_t most_rows() const { return 0; }
  // Makes ready for the steps of a group that has formed, in which no rank has more than peers.rows() rows;
  // to be called before its first step. Meets no peer. An error means that the engine is broken permanently.
  virtual absl::Status EnterGroup(const StepPeers& /*peers*/) { return absl::OkStatus(); }
  // Rows that the next step computes here. Preempts requests for it if necessary (StepOutput::preempted).
  virtual int64_t NextRows() { return 0; }
  // Whom the last NextRows took out: they are gone even if the step fails, and then in no StepOutput.
  virtual absl::Span<const Handle> taken_out() const { return {}; }
  // Runs one step of the whole group; every rank calls it, after NextRows, with or without requests. When the
  // peers fail (peers.status() is that error) no token was made, and the same step may be made again with
  // other peers, with the same outcome; requests that were taken out are gone. Any other error means that the
  // engine is broken permanently.
  virtual absl::Status StepTogether(StepPeers& peers, StepOutput& out);

  // From the next step on as many prompt tokens are computed as the level allows, within the engine's own
  // budget; none: as many as the budget allows. Engines that take prompts whole ignore it.
  virtual void SetPrefillLevel(const std::optional<PrefillLevel>& /*level*/) {}
  // The last step's local part was followed by so long a wait for the other ranks.
  virtual void Waited(double /*seconds*/) {}
  // Nothing where prompts are taken whole.
  virtual std::optional<PrefillState> prefill_state() const { return std::nullopt; }

  virtual int32_t active() const = 0;
  virtual int32_t free_slots() const = 0;
  // Not reserved.
  virtual int64_t free_kv_tokens() const = 0;
  virtual std::vector<ResidentSequence> resident() const = 0;
};

inline absl::Status Engine::StepTogether(StepPeers&, StepOutput&) {
  return absl::UnimplementedError("this engine steps by itself");
}

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_ENGINE_H_
