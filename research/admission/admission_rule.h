// Which waiting requests one worker starts, round by round, under a bound on its KV memory.
//
// Purpose: the interface of the admission rules of "Online Scheduling for LLM Inference with KV Cache
// Constraints" and their baselines, for the one-worker simulator (one_worker.h). The router's admission is
// router/core/admission. A rule is informed of arrivals and ends, and decides before each round which
// requests start and which are evicted or preempted. Rules are deterministic for their seed. Not thread-safe.
//
// Sizes in tokens, time in rounds: a round is one decode step of the worker. A request of s prompt tokens
// that starts in round p and generates o tokens holds s + (t - p) tokens at the beginning of round t, up to t
// = p + o.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/core/model/request.h"

namespace bfio::sim {

using core::RequestId;

struct AdmissionRequest {
  RequestId id = 0;
  // s, at least 0.
  int64_t prompt = 0;
  // The predicted o, at least 1; exact where lengths are known.
  int64_t output = 0;
  // Maximum number of tokens that it may generate; 0: no limit is known.
  int64_t most = 0;
};

// The actions that a rule takes before a round.
struct AdmissionRound {
  // Requests to evict: their progress is lost, and they wait again at the position they had.
  std::vector<RequestId> evict;
  // Requests to preempt: they wait again, and resume with their generated tokens as part of the prompt.
  std::vector<RequestId> preempt;
  std::vector<RequestId> begin;

  void Clear() {
    evict.clear();
    preempt.clear();
    begin.clear();
  }
};

class AdmissionRule {
 public:
  virtual ~AdmissionRule() = default;

  // Requests arrive in this order. REQUIRES: a new id.
  virtual void OnArrival(const AdmissionRequest& request) = 0;
  // Called once for each round, rounds ascending; `out` is cleared first. Its actions are carried out.
  virtual void Decide(int64_t round, AdmissionRound& out) = 0;
  // A request generated its last token in the round before the next call of Decide.
  virtual void OnEnd(RequestId id) = 0;

  // Number of waiting requests.
  virtual int64_t waiting() const = 0;
};

class Lengths;

struct AdmissionOptions {
  // M: the worker's KV capacity.
  int64_t memory = 0;
  // Whether the prompt counts from the beginning of its first round (the paper as published first: s + (t' -
  // p) for 0 <= t' - p <= o), or only from its first token on (later versions: 1 <= t' - p <= o).
  bool counts_first_round = true;
  uint64_t seed = 1;
  // mc_*: predicts lengths in place of AdmissionRequest::output (lengths.h); may be null, borrowed.
  Lengths* lengths = nullptr;
};

// Creates a rule from text:
//   mc_sf                      Algorithms 1 and 2: shortest first, while memory suffices until all end
//   mc_sf_paced                the same, but similar requests do not all end together (not in the paper)
//   mc_fcfs                    the same test in the order of arrival (MC-Benchmark)
//                              (each of these with :margin=N, tokens that a request may generate beyond its
//                              predicted length, and most=K, rounds after which no request passes it)
//   protect:alpha=A            starts while memory stays within (1 - A) M; on overflow evicts all
//   protect:alpha=A,beta=B     the same; evicts each with probability B until the rest fits
//   watermark[:share=W,block=K] in the order of arrival while a share W (0.01) of the blocks of K (16) tokens
//                              stays free; preempts those that started last (vLLM)
// INVALID_ARGUMENT names what is wrong. REQUIRES: options.memory > 0.
absl::StatusOr<std::unique_ptr<AdmissionRule>> MakeAdmissionRule(absl::string_view text,
                                                                 const AdmissionOptions& options);

}  // namespace bfio::sim
