// A group of engine ranks that compute prompts in chunks, decode, and meet in a barrier after every step. The
// effect of a step on the group, for every rule. Prompts are computed in the order in which they were bound;
// the step with a prompt's last token generates the first output token. Every decode generates one token. The
// step takes as long as the slowest rank. Slots are limited, KV memory is not. Threads: none; a group belongs
// to its run. Deterministic for a seed. Units: tokens, seconds, steps.
#ifndef BFIO_TOOLS_SIM_SERVE_SERVE_GROUP_H_
#define BFIO_TOOLS_SIM_SERVE_SERVE_GROUP_H_

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "common/cost/group_time.h"

namespace bfio::sim {

struct ServeRequest {
  double arrival_s = 0;
  int64_t prompt = 0;
  int64_t output = 0;
  // Negative until the request gets there.
  double first_token_s = -1;
  double end_s = -1;
};

using ServeRequestIndex = int32_t;

struct BoundPrompt {
  ServeRequestIndex request = 0;
  int64_t left = 0;
  int64_t done = 0;
  double bound_at_s = 0;
};

struct ServeRank {
  // Requests that decode in the coming step, and the tokens that they attend to.
  int64_t decodes = 0;
  int64_t decode_context = 0;
  // Prompts bound and not yet fully computed, in order; the first `begun` of them hold a slot.
  std::deque<BoundPrompt> prompts;
  int64_t begun = 0;
  // Tokens of `prompts` not yet computed.
  int64_t prompt_tokens = 0;

  // Slots in use.
  int64_t running() const { return decodes + begun; }
  // Prompts bound that have no slot yet.
  int64_t queued() const { return static_cast<int64_t>(prompts.size()) - begun; }
};

// The work of one rank in one step.
struct RankOrder {
  // Maximum number of prompt tokens.
  int64_t prompt_tokens = 0;
  // False: the rank's decodes skip this step, as in engines that compute prompts in separate batches.
  bool decodes = true;
};

// Duration and tokens of a step.
struct ServeStep {
  double seconds = 0;
  // Local time by rank, each with its own noise; 0 for a rank without work.
  std::vector<double> rank_s;
  // The same for the decodes alone.
  std::vector<double> decode_s;
  // The batch that each rank computed, and its decodes alone.
  std::vector<BatchLoad> loads, decode_loads;
  int64_t tokens = 0;
  std::vector<ServeRequestIndex> ended;
  // Gaps between tokens that ended in this step: seconds, and the number of requests with that gap.
  std::vector<std::pair<double, int64_t>> gaps;
};

class ServeGroup {
 public:
  struct Options {
    int32_t ranks = 1;
    int64_t slots = 1;
    GroupCost cost;
    // Standard deviation of the logarithm of the lognormal factor, with mean 1, on every rank's time.
    double jitter = 0;
    uint64_t seed = 1;
    // Upper bound of a request's output tokens.
    int64_t longest_output = 1;
  };
  // Borrows `requests`, to which the caller may append, and writes their times.
  ServeGroup(const Options& options, std::vector<ServeRequest>* requests);

  void Bind(ServeRequestIndex request, int32_t rank, double now_s);
  // `orders`: one per rank. The step begins at `now_s`. A step in which no rank has work takes no time.
  const ServeStep& Step(const std::vector<RankOrder>& orders, double now_s);

  const std::vector<ServeRank>& ranks() const { return ranks_; }
  // Requests that are bound and have not ended.
  int64_t active() const { return active_; }

 private:
  // State of a rank that is not visible to rules.
  struct Hidden {
    // Number of decode steps so far; the requests that end in each, modulo the longest output.
    int64_t decode_steps = 0;
    std::vector<std::vector<ServeRequestIndex>> ends;
    // For decodes: the time of the last token, and the number of decodes with this time.
    std::vector<std::pair<double, int64_t>> since;
    // Requests whose last prompt token is computed in this step.
    std::vector<ServeRequestIndex> prefilled;
  };

  void ComputePrompts(int32_t rank, int64_t most, BatchLoad& load);
  // Sets the times of step_ from its batches.
  void Time();
  void Decode(int32_t rank, double end_s);
  void GiveFirstTokens(int32_t rank, double end_s);
  void End(ServeRequestIndex index, double end_s);
  double Noise();

  const int64_t slots_;
  const GroupCost cost_;
  const double jitter_;
  Rng rng_;
  std::vector<ServeRequest>* const requests_;
  std::vector<ServeRank> ranks_;
  std::vector<Hidden> hidden_;
  int64_t active_ = 0;
  ServeStep step_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_SERVE_SERVE_GROUP_H_
