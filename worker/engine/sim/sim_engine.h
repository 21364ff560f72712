// The sim engine: a DecodeEngine over a backend without a model, which sleeps instead of computing. Runs the
// real router, barrier and links on machines without GPUs. A step sleeps for the time that the cost model
// gives for its load, so many workers fit on few cores. Token streams are deterministic (SimToken).
// Prompts are computed whole in their first step; with `token_budget`, in chunks as in the other engines.
// Threads: as in engine.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cost/step_time.h"
#include "worker/engine/decode/decode_engine.h"
#include "worker/engine/engine.h"
#include "worker/scheduler/batch_planner.h"

namespace bfio::worker {

// The token stream of the sim engine: which token a request gets at which index. Pure functions. A token
// depends only on the original prompt (its ids, or its length for synthetic load), the request's sampling
// seed and the index: not on the handle, the worker, the engine's seed or the batch. So a replay, whose
// prompt is the original one plus the delivered tokens, continues with exactly the tokens that the first run
// would have generated.
inline constexpr int32_t kSimVocabulary = 32000;
inline constexpr uint32_t kSimEosToken = 2;
// Smaller ids are special (padding, start, end) and are never drawn as ordinary tokens.
inline constexpr uint32_t kSimFirstOrdinaryToken = 3;
// A request whose prompt contains this id has no finite logits, as with a corrupt embedding row: it fails,
// and no other request does.
inline constexpr uint32_t kSimPoisonToken = 0xffffffff;

// The key of a request's token stream. REQUIRES: 0 <= first_index < prompt_length; the prompt is empty or has
// prompt_length ids.
uint64_t SimStreamKey(const SequenceRequest& request);

// The token at `index`; the end-of-sequence token with probability `eos_probability`,
// else one below `vocabulary`.
uint32_t SimToken(uint64_t stream_key, int64_t index, double eos_probability,
                  int32_t vocabulary = kSimVocabulary);

// Threads: used by one thread at a time.
class StepTimer {
 public:
  virtual ~StepTimer() = default;

  // Monotonic, in nanoseconds.
  virtual int64_t NowNs() = 0;
  // Returns at once when `time_ns` has passed.
  virtual void SleepUntilNs(int64_t time_ns) = 0;
};

// CLOCK_MONOTONIC. Sets the calling thread's timer slack to 1 ns (the default of 50 us is 1 % of a 5 ms
// step).
class RealStepTimer final : public StepTimer {
 public:
  int64_t NowNs() override;
  void SleepUntilNs(int64_t time_ns) override;
};

struct SimOptions {
  EngineLimits limits;
  StepCost cost;
  // Probability that a token is the end-of-sequence token, in [0, 1). It is part of the model's identity
  // (SimModelName): workers that differ in it are placed in different groups.
  double eos_probability = 0;
  // The sampling seed of a request determines its number of tokens, unless the request ignores ends: only the
  // client has the length in advance. Also part of the model's identity.
  bool ends_by_seed = false;
  // Token ids are below it. Also part of the model's identity.
  int32_t vocabulary = kSimVocabulary;
  // The token budget of a step; 0: every prompt is computed whole in its first step.
  int64_t token_budget = 0;
};

// INVALID_ARGUMENT when an option is out of range. A null `timer` means real time.
absl::StatusOr<std::unique_ptr<DecodeEngine>> MakeSimEngine(const SimOptions& options,
                                                            std::unique_ptr<StepTimer> timer = nullptr);

// Identifies everything that tokens depend on besides the request: a worker with another name would continue
// a request with other tokens. Does not contain speed and capacity.
std::string SimModelName(const SimOptions& options);

class SimBackend final : public Backend {
 public:
  // REQUIRES: options are in range; timer is not null.
  SimBackend(const SimOptions& options, std::unique_ptr<StepTimer> timer);

  absl::string_view name() const override { return "sim"; }
  const ModelFacts& facts() const override { return facts_; }
  void Begin(SequenceIndex sequence, const SequenceRequest& request) override;
  absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override;

 private:
  int64_t DurationNs(const StepPlan& plan);

  const SimOptions options_;
  const ModelFacts facts_;
  const std::unique_ptr<StepTimer> timer_;
  // By index in the page table.
  struct Stream {
    uint64_t key = 0;
    bool finite = true;
    // Index of its end-of-sequence token; -1: by eos_probability.
    int64_t end = -1;
  };
  std::vector<Stream> streams_;
};

}  // namespace bfio::worker
