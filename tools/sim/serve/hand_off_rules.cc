#include "tools/sim/serve/hand_off_rules.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/rng.h"

namespace bfio::sim {
namespace {

// Requests queue in the engines. Prefill ranks are chosen by the same load as decode ranks, as far as they
// have it.
class HandOffDispatcher final : public EngineDispatcher {
 public:
  HandOffDispatcher(const HandOffRule& rule, int64_t budget, int64_t prefill_budget, uint64_t seed,
                    ServeGroup* group, const std::vector<ServeRequest>* requests)
      : rule_(rule),
        budget_(budget),
        prefill_budget_(prefill_budget),
        group_(group),
        requests_(requests),
        rng_(seed),
        loads_(group->ranks().size()) {}

  void Arrived(ServeRequestIndex index) override {
    const auto ranks = static_cast<int32_t>(loads_.size());
    const int32_t prefill = Choose(group_->decode_ranks(), ranks);
    ++loads_[prefill].requests;
    ++loads_[prefill].starting;
    if (rule_.on_arrival) Reserve(index);
    group_->Bind(index, prefill);
  }

  void Stepped(int32_t stepper, const ServeStep& step, double now_s) override {
    for (const auto& [index, prefill] : step.returned) {
      --loads_[prefill].requests;
      --loads_[prefill].starting;
      if (!rule_.on_arrival) Reserve(index);
      const int32_t rank = decode_.at(index);
      loads_[rank].promised -= (*requests_)[index].prompt;
      ++loads_[rank].starting;
      group_->Bind(index, rank);
    }
    for (const auto& [index, rank] : step.first_tokens) {
      --loads_[rank].starting;
      loads_[rank].prompts -= (*requests_)[index].prompt;
    }
    for (const auto& [index, rank] : step.ended) {
      --loads_[rank].requests;
      decode_.erase(index);
    }
  }

  bool Order(int32_t stepper, std::vector<RankOrder>& orders) override {
    const bool prefills = group_->RanksOf(stepper).first >= group_->decode_ranks();
    FillBudget(*group_, stepper, prefills ? prefill_budget_ : budget_, orders);
    return group_->HasWork(stepper);
  }

 private:
  struct RankLoad {
    // Requests until they end here; those that are bound and have no first token.
    int64_t requests = 0, starting = 0;
    // Prompt tokens of requests that will come, and of all without a first token.
    int64_t promised = 0, prompts = 0;
  };

  void Reserve(ServeRequestIndex index) {
    const int32_t rank = Choose(0, group_->decode_ranks());
    decode_[index] = rank;
    ++loads_[rank].requests;
    loads_[rank].promised += (*requests_)[index].prompt;
    loads_[rank].prompts += (*requests_)[index].prompt;
  }

  std::pair<int64_t, int64_t> LoadOf(int32_t rank) const {
    const RankLoad& load = loads_[rank];
    switch (rule_.load) {
      case HandOffRule::Load::kRequests: return {load.requests, 0};
      case HandOffRule::Load::kRequestsThenPrompts: return {load.requests, load.prompts};
      case HandOffRule::Load::kStarting: return {load.starting, 0};
      case HandOffRule::Load::kTokens: break;
    }
    const ServeRank& of = group_->ranks()[rank];
    return {rank < group_->decode_ranks() ? of.resident_tokens() + load.promised : of.prompt_tokens, 0};
  }

  // One of the ranks [first, end); ranks of equal load take turns.
  int32_t Choose(int32_t first, int32_t end) {
    const int32_t count = end - first;
    const auto any = [&] { return first + static_cast<int32_t>(rng_.Below(static_cast<uint64_t>(count))); };
    if (rule_.two_choices) {
      const int32_t a = any(), b = any();
      return LoadOf(b) < LoadOf(a) ? b : a;
    }
    int32_t best = first + next_++ % count;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t rank = first + (next_ + i) % count;
      if (LoadOf(rank) < LoadOf(best)) best = rank;
    }
    return best;
  }

  const HandOffRule& rule_;
  const int64_t budget_, prefill_budget_;
  ServeGroup* const group_;
  const std::vector<ServeRequest>* const requests_;
  Rng rng_;
  int32_t next_ = 0;
  // By rank.
  std::vector<RankLoad> loads_;
  // The rank that is to decode a request.
  absl::flat_hash_map<ServeRequestIndex, int32_t> decode_;
};

}  // namespace

const std::vector<HandOffRule>& HandOffRules() {
  using Load = HandOffRule::Load;
  static const std::vector<HandOffRule>* const rules = new std::vector<HandOffRule>{
      {.name = "bfio",
       .summary =
           "prompts begin as far as decode ranks have room; bf_io_auto places them when they are computed",
       .policy = "bf_io_auto",
       .lookahead = "survival",
       .begins_prompts = true,
       .keeps_prompts = true},
      {.name = "bfio_hands_all",
       .summary = "the same, but every prompt is handed over",
       .policy = "bf_io_auto",
       .lookahead = "survival",
       .begins_prompts = true},
      {.name = "bfio_oracle",
       .summary = "the same with known output lengths",
       .policy = "bf_io_auto",
       .lookahead = "oracle",
       .begins_prompts = true,
       .keeps_prompts = true},
      {.name = "smg_least_requests", .summary = "both ranks on arrival, those with the fewest requests"},
      {.name = "smg_power_of_two",
       .summary = "both ranks on arrival, those with fewer requests of two random ones",
       .two_choices = true},
      {.name = "vllm_router",
       .summary = "as smg_power_of_two, but a request counts on its decode rank only up to its first token",
       .two_choices = true,
       .load = Load::kStarting},
      {.name = "llm_d",
       .summary =
           "decode rank on arrival, that with the fewest requests, then prompt tokens before a first token",
       .load = Load::kRequestsThenPrompts},
      {.name = "arrival_tokens",
       .summary = "both ranks on arrival, those with the fewest tokens, requests to come included",
       .load = Load::kTokens},
      {.name = "dynamo_requests",
       .summary = "decode rank when the prompt is computed, that with the fewest requests",
       .on_arrival = false},
      {.name = "dynamo_tokens",
       .summary = "decode rank when the prompt is computed, that with the fewest tokens",
       .on_arrival = false,
       .load = Load::kTokens},
      {.name = "br0",
       .summary = "prefill rank on arrival; computed prompts wait for a slot, and BR-0 places them",
       .policy = "br0",
       .lookahead = "survival"},
      {.name = "br_h", .summary = "the same with BR-H", .policy = "br_h", .lookahead = "survival"},
  };
  return *rules;
}

const HandOffRule* FindHandOffRule(absl::string_view name) {
  for (const HandOffRule& rule : HandOffRules())
    if (rule.name == name) return &rule;
  return nullptr;
}

std::unique_ptr<EngineDispatcher> MakeHandOffDispatcher(const HandOffRule& rule, int64_t budget,
                                                        int64_t prefill_budget, uint64_t seed,
                                                        ServeGroup* group,
                                                        const std::vector<ServeRequest>* requests) {
  return std::make_unique<HandOffDispatcher>(rule, budget, prefill_budget, seed, group, requests);
}

}  // namespace bfio::sim
