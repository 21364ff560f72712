// Traffic of sessions of one or more turns, whose prompts may share prefixes. The requests of `bfio_sim
// prefixes`. If its workload has shared texts, a session begins with one of them. Each turn's prompt consists
// of all earlier prompts and outputs and a new message. Sessions arrive as a Poisson process; the next turn
// arrives a think time after the end of the last one. At time 0 as many sessions are under way as the load
// implies; their earlier turns are in no cache. A trace's sessions come in its order and at its times, made
// faster or slower, or as a Poisson process where it has no times; then they are drawn, each with prefixes of
// its own. Deterministic for a seed: a session's lengths and times do not depend on how its requests are
// served. Threads: one. Units: tokens, seconds.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/rng.h"
#include "common/workload/trace.h"
#include "tools/sim/rank/serve_group.h"

namespace bfio::sim {

struct EngineOptions {
  int32_t slots = 64;
  int64_t token_budget = 2048;
  int64_t kv_tokens = 200'000;
  bool caches = true;
  // It computes prompts up to a level that the router sets (vLLM with bfio's scheduler class).
  bool metered = false;
  BatchCost cost = kEightBillionCost;
};

struct WorkloadShape {
  const char* name;
  // Lengths are lognormal with this mean; sigma is the standard deviation of the logarithm. Negative: uniform
  // in 20 .. 300.
  struct Length {
    double mean = 0, sigma = 0;
  };
  // Number of texts with which sessions begin, and the exponent of their Zipf popularity.
  int32_t shared_texts = 0;
  double zipf = 0;
  Length shared, message, output;
  // Mean number of turns (geometric) and mean pause between them (exponential).
  double turns = 1;
  double think_s = 0;
  int64_t max_new_tokens = 2'048;
};

const std::vector<WorkloadShape>& WorkloadShapes();
// INVALID_ARGUMENT, listing the known names, for an unknown one.
absl::StatusOr<WorkloadShape> FindWorkload(absl::string_view name);

class PrefixWorkload {
 public:
  // A part of a session's tokens: the id of its text, shared or of this session only, and its length.
  struct Segment {
    uint64_t text = 0;
    int64_t tokens = 0;
  };
  struct Session {
    int64_t number = 0;
    Rng rng{0};
    std::vector<Segment> said;
    int64_t tokens = 0;
    uint64_t texts = 0;
    bool ended = false;
    // Of a trace: its next request.
    size_t next = 0;
  };

  PrefixWorkload(const WorkloadShape& shape, uint64_t seed);
  // A session ends before a request that has more than `longest` tokens with its output. `trace` outlives it.
  PrefixWorkload(const Trace* trace, int64_t longest, uint64_t seed);

  // Requests per second of one rank that always has work, without cache hits.
  double Capacity(const EngineOptions& engine) const;

  Session NewSession(int64_t number) const;
  // The next turn's request, without arrival time; empty when the session has ended.
  std::optional<ServeRequest> NextTurn(Session& session) const;
  double Think(Session& session) const;
  // When the sessions of a trace begin, by number, at most `sessions` of them at this mean rate; empty:
  // whenever.
  std::vector<double> Arrivals(double sessions_per_s, int64_t sessions) const;
  // A session that began before time 0 and continues.
  Session UnderWay(int64_t number) const;

  const WorkloadShape& shape() const { return shape_; }

 private:
  int64_t Draw(const WorkloadShape::Length& length, Rng& rng, int64_t most) const;
  std::optional<ServeRequest> NextOfTrace(Session& session) const;
  bool FollowsInTrace(size_t index) const {
    return index < trace_->requests.size() && trace_->requests[index].after >= 0;
  }

  WorkloadShape shape_;
  const Rng rng_;
  std::vector<int64_t> shared_tokens_;
  // Cumulative probabilities of the shared texts.
  std::vector<double> popularity_;
  // The trace, if it is one, and its sessions' first requests.
  const Trace* trace_ = nullptr;
  int64_t longest_ = 0;
  std::vector<size_t> first_;
  // The first of them, where the trace has times: each seed has another part of it.
  size_t begin_ = 0;
};

}  // namespace bfio::sim
