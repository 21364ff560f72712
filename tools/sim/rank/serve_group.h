// Ranks of engines with continuous batching, which compute prompts in chunks beside their decodes: the effect
// of a step on them, for every simulation of engines. Slots, KV blocks with prefix caching, and preemption
// are those of vLLM. Prompts are computed in the order in which they were bound; the step with a prompt's
// last token generates the first output token. Every decode generates a token in every step. A rank begins
// the next prompt while slot, prompt tokens and the whole prompt's blocks are free. If a running request gets
// no block, the one that began last is preempted: it returns to the front of the queue and is recomputed.
//
// With a barrier all ranks step together, and a step takes as long as the slowest rank; without one each
// steps by itself. What steps, the group or a rank, is a stepper. Prefill ranks (disaggregated prefill) each
// step by themselves and compute prompts for the others. A computed prompt returns to the dispatcher; bound
// to another rank, its KV takes the time of a transfer to get there, and its last token is computed again.
//
// Cost of a step: O(ranks + prompts computed + ends + decodes that need a block); other decodes are only
// counted. Threads: none; a group belongs to its run. Deterministic for a seed. Units: tokens, seconds,
// steps.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/rng.h"
#include "common/cost/group_time.h"
#include "router/core/model/request.h"
#include "tools/sim/rank/drift.h"

namespace bfio::sim {

// The blocks of an engine's KV memory, which keep their contents until the memory is needed. Prefix caching
// as in vLLM's block pool. A full block has a name. A block without users is free, but keeps its name until
// it is allocated again. The block that has been free longest is allocated first. Threads: one. Cost: O(1)
// per call. Units: blocks.

// Tokens per block of an engine's KV memory, as in vLLM.
inline constexpr int64_t kEngineBlockTokens = 16;

class BlockPool {
 public:
  using Block = int32_t;

  // `blocks` free blocks without names. Without `cache`, blocks never get names.
  BlockPool(int64_t blocks, bool cache);

  std::optional<Block> Find(uint64_t name) const;
  bool in_use(Block block) const { return blocks_[static_cast<size_t>(block)].users > 0; }
  // Adds a user to a block that Find returned.
  void Share(Block block);
  // Returns the block that has been free longest; the block loses its name. REQUIRES: free_blocks() > 0.
  Block Allocate();
  // Names a full block. No effect if another block has the name.
  void Name(Block block, uint64_t name);
  // Removes a user. A block without users becomes the most recently freed one.
  void Release(Block block);

  int64_t free_blocks() const { return std::ssize(free_); }
  int64_t size() const { return std::ssize(blocks_); }
  bool cache() const { return cache_; }

 private:
  struct Entry {
    std::optional<uint64_t> name;
    int32_t users = 0;
    // In free_ or used_.
    std::list<Block>::iterator at;
  };

  const bool cache_;
  std::vector<Entry> blocks_;
  absl::flat_hash_map<uint64_t, Block> by_name_;
  // Free blocks in order of their release.
  std::list<Block> free_, used_;
};

// Llama-3-8B in 16 bits on an H100. C: reading 16 GB of weights, and the time between steps. A, K1: 16e9
// operations per token and 524,288 per pair of tokens that attend to each other, at half of 989e12 operations
// per second. K2: 131,072 bytes of KV per token at 80 % of 3.35e12 bytes per second.
inline constexpr BatchCost kEightBillionCost = {.c_s = 7.5e-3,
                                                .a_s_per_token = 0.027e-3,
                                                .b0_tokens = 220,
                                                .k1_s_per_pair = 1.05e-9,
                                                .k2_s_per_token = 4.85e-8};

struct ServeRequest {
  double arrival_s = 0;
  int64_t prompt = 0;
  int64_t output = 0;
  // Negative until the request gets there.
  double first_token_s = -1;
  double end_s = -1;
  // Prompt tokens found in the rank's cache when it first began there; negative: it has not begun.
  int64_t cached = -1;
  // The limit in the client's request.
  int64_t max_new_tokens = 0;
  int64_t session = 0;
  // Names of the whole blocks of prompt and output; each name identifies all tokens up to the block's end.
  // Used only where ranks cache prefixes.
  std::vector<uint64_t> blocks = {};
  // Names of the prompt's blocks as the router sees them: the i-th is that of the block with the same end.
  core::PrefixBlocks prefix = nullptr;
  core::RequestId id = 0;
  // Tokens generated before it last returned to the router; they count as prompt now, not as output.
  int64_t made = 0;
  // Prompt tokens whose KV a prefill rank keeps for the rank that it will be bound to, and since when.
  int64_t computed = 0;
  double handed_over_s = -1;
};

using ServeRequestIndex = int32_t;

struct BoundPrompt {
  ServeRequestIndex request = 0;
  int64_t left = 0;
  int64_t done = 0;
  // Tokens generated before a preemption; they count as prompt.
  int64_t generated = 0;
  // Number of the request in the order in which requests began on the rank.
  int64_t began = 0;
  std::vector<BlockPool::Block> blocks = {};
};

struct ServeRank {
  // Requests that decode in the coming step, and the tokens that they attend to.
  int64_t decodes = 0;
  int64_t decode_context = 0;
  // Prompts bound and not yet fully computed, in order; the first `begun` of them hold a slot.
  std::deque<BoundPrompt> prompts;
  int64_t begun = 0;
  // Tokens of `prompts` not yet computed, and of all of them.
  int64_t prompt_tokens = 0;
  int64_t bound_tokens = 0;
  // Requests whose KV is on the way to the rank. Their tokens are among those bound.
  std::vector<ServeRequestIndex> in_transfer;

  // Slots in use.
  int64_t running() const { return decodes + begun; }
  // Prompts bound that have no slot yet.
  int64_t queued() const { return static_cast<int64_t>(prompts.size()) - begun; }
  // Prompt and generated tokens of all its requests.
  int64_t resident_tokens() const { return decode_context + bound_tokens; }
  bool idle() const { return decodes == 0 && prompts.empty(); }
};

// The work of one rank in one step.
struct RankOrder {
  // Maximum number of prompt tokens.
  int64_t prompt_tokens = 0;
  // False: the rank's decodes skip this step, as in engines that compute prompts in separate batches.
  bool decodes = true;
  // Only as many prompt tokens as the step can compute by this time (ServeGroup::Options::known).
  double level_s = std::numeric_limits<double>::infinity();
};

// A stepper's step. Vectors have an element for each of its ranks.
struct ServeStep {
  double seconds = 0;
  // Its rank computes prompts for others.
  bool prefills = false;
  // The rank had requests when the step began.
  std::vector<bool> busy;
  // Local time, each with its own noise; 0 for a rank without work. The same for the decodes alone.
  std::vector<double> rank_s, decode_s;
  // The batch that each rank computed, and its decodes alone.
  std::vector<BatchLoad> loads, decode_loads;
  // Prompt and generated tokens of all requests on the rank, those that have not begun included.
  std::vector<int64_t> resident_tokens;
  // Tokens generated.
  int64_t tokens = 0;
  // Requests, each with its rank: those that began, got their first token, ended, or returned to the router,
  // for lack of memory or because their prompts are computed for other ranks.
  std::vector<std::pair<ServeRequestIndex, int32_t>> began, first_tokens, ended, returned;
  // Gaps between tokens that ended in this step: seconds, and the number of requests with that gap.
  std::vector<std::pair<double, int64_t>> gaps;

  void Clear();
};

class ServeGroup {
 public:
  struct Options {
    int32_t ranks = 1;
    // Prefill ranks, beside `ranks` and after them. They have memory for all KV.
    int32_t prefill_ranks = 0;
    // Time of a transfer of KV from a prefill rank.
    double transfer_s = 0, transfer_s_per_token = 0;
    int64_t slots = 1;
    GroupCost cost;
    bool barrier = true;
    // Standard deviation of the logarithm of the lognormal factor, with mean 1, on every rank's time.
    double jitter = 0;
    uint64_t seed = 1;
    // Upper bound of a request's output tokens.
    int64_t longest_output = 1;
    // KV tokens of a rank; 0: no limit, and no caches.
    int64_t kv_tokens = 0;
    // Ranks keep the KV of prompts for later requests.
    bool caches = true;
    // The KV limit counts tokens instead of blocks; a rank without memory for a step returns requests to the
    // router, the youngest first.
    bool returns_requests = false;
    // Tokens that a decode generates in each step, and by which its context grows; and its rows.
    Drift drift = Drift::Steady(1);
    int64_t decode_rows = 1;
    // Sets rank_s and seconds of a step with other times than by `cost`; empty: by `cost`.
    std::function<void(ServeStep&)> time;
  };
  // Borrows `requests`, to which the caller may append, and writes their times.
  ServeGroup(const Options& options, std::vector<ServeRequest>* requests);

  // The cost by which ranks fill their steps up to a level; the true one by default.
  void SetKnownCost(const BatchCost& cost) { known_ = cost; }
  // REQUIRES: with a KV limit, prompt and output fit into it.
  void Bind(ServeRequestIndex request, int32_t rank);
  // Begins a step, with an order for each rank of the stepper, and returns its duration; 0: no rank has work.
  double Begin(int32_t stepper, const std::vector<RankOrder>& orders);
  // Ends the step. The result is valid until the next call.
  const ServeStep& End(int32_t stepper, double now_s);

  // Transfers that have ended by then reach their ranks. Later transfers begin then.
  void Advance(double now_s);
  // A prefill rank drops the KV of a request that it has handed over.
  void DropKv(ServeRequestIndex request) { (*requests_)[request].computed = 0; }
  // When the next transfer ends.
  double NextTransfer() const;

  int32_t steppers() const {
    return static_cast<int32_t>(ranks_.size()) - (barrier_ ? decode_ranks_ - 1 : 0);
  }
  // Its ranks are [first, second).
  std::pair<int32_t, int32_t> RanksOf(int32_t stepper) const {
    if (barrier_ && stepper == 0) return {0, decode_ranks_};
    const int32_t rank = stepper + (barrier_ ? decode_ranks_ - 1 : 0);
    return {rank, rank + 1};
  }
  bool barrier() const { return barrier_; }
  // Those that are no prefill ranks; they come first.
  int32_t decode_ranks() const { return decode_ranks_; }
  int64_t slots() const { return slots_; }
  const std::vector<ServeRank>& ranks() const { return ranks_; }
  // Requests that are bound and have not ended.
  int64_t active() const { return active_; }
  bool HasWork(int32_t stepper) const;
  bool in_step(int32_t stepper) const { return in_step_[stepper]; }
  // Calls `visit` with each decoding request, its rank, and the number of tokens that it has left.
  void ForEachDecode(const std::function<void(ServeRequestIndex, int32_t rank, int64_t left)>& visit);
  // Prompt tokens that are in the rank's cache now: whole blocks, and always fewer than the prompt has.
  int64_t Cached(int32_t rank, const ServeRequest& request) const;
  // Tokens of the KV blocks in use on a rank.
  int64_t UsedTokens(int32_t rank) const;
  // Their share of the rank's memory.
  double KvUse(int32_t rank) const;
  int64_t preemptions() const { return preemptions_; }

 private:
  // A decoding request. After n decode steps of its rank it attends to context + D(n) tokens and has
  // generated generated + A(n) (drift.h).
  struct Decode {
    ServeRequestIndex request = 0;
    int64_t began = 0;
    int64_t context = 0, generated = 0;
    // The decode step that generates its last token.
    int64_t last = 0;
    std::vector<BlockPool::Block> blocks;
  };
  // State of a rank that is not visible to rules.
  struct Hidden {
    // Number of steps with decodes so far, whether there were any. The decodes that need attention in each,
    // because they need a block or end, modulo the number of lists.
    int64_t decode_steps = 0;
    std::vector<std::vector<Decode>> due;
    // For decodes: the time of the last token, and the number of decodes with this time.
    std::vector<std::pair<double, int64_t>> since;
    // Number of prompts, from the front, that are complete after the current step.
    int64_t prefilled = 0;
    bool decodes_run = true;
    int64_t began = 0;
    std::optional<BlockPool> pool;
  };
  struct Transfer {
    double end_s = 0;
    ServeRequestIndex request = 0;
    int32_t rank = 0;
  };

  void Enqueue(ServeRequestIndex request, int32_t rank);
  std::vector<Decode>& DueIn(int32_t rank, int64_t step) {
    return hidden_[rank].due[static_cast<size_t>(step) % hidden_[rank].due.size()];
  }
  void Schedule(int32_t rank, Decode decode);
  // Returns whether a request was preempted.
  bool ExtendDecodes(int32_t rank);
  void ReturnOverflow(int32_t rank, ServeStep& step);
  void ComputePrompts(int32_t rank, int64_t most, bool begin, ServeStep& step);
  int64_t PromptTokensWithin(int32_t rank, double level_s) const;
  // Sets the times of a step from its batches.
  void Time(ServeStep& step);
  void EndDecodes(int32_t rank, double end_s, ServeStep& step);
  void GiveFirstTokens(int32_t rank, double end_s, ServeStep& step);
  void EndRequest(int32_t rank, ServeRequestIndex index, double end_s, ServeStep& step);
  double Noise();

  std::vector<BlockPool::Block> Match(const BlockPool& pool, const ServeRequest& request,
                                      int64_t tokens) const;
  // Takes the prompt's cached blocks. False: its other blocks are not free.
  bool TakeCached(int32_t rank, BoundPrompt& prompt);
  // Allocates the blocks of a request's first `tokens` tokens, and names those that are complete from the
  // block of token `from` on. False: too few are free.
  bool Extend(int32_t rank, ServeRequestIndex index, int64_t from, int64_t tokens,
              std::vector<BlockPool::Block>& blocks);
  void Release(int32_t rank, std::vector<BlockPool::Block>& blocks);
  // Preempts the request that began last. Returns its `began`.
  int64_t Preempt(int32_t rank);

  const int32_t decode_ranks_;
  const double transfer_s_, transfer_s_per_token_;
  const int64_t slots_;
  const GroupCost cost_;
  const bool barrier_;
  const double jitter_;
  const int64_t decode_rows_;
  // Above 0: the limit of tokens beyond which requests return to the router.
  const int64_t return_above_;
  const std::function<void(ServeStep&)> time_;
  Drift drift_;
  Rng rng_;
  std::vector<ServeRequest>* const requests_;
  BatchCost known_;
  std::vector<ServeRank> ranks_;
  std::vector<Hidden> hidden_;
  std::vector<Transfer> transfers_;
  double now_s_ = 0;
  int64_t active_ = 0, preemptions_ = 0;
  // By stepper; and the one that has ended.
  std::vector<ServeStep> steps_;
  std::vector<bool> in_step_;
  ServeStep ended_;
};

}  // namespace bfio::sim
