// A decode engine whose backend's "cache" stores tokens and whose "model" is a hash.
//
// Purpose: tests of the host's part of the engine: what it generates depends on every token that its page
// tables address, so a wrong page or position changes the output. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <deque>

#include "common/base/rng.h"
#include "common/base/status_macros.h"
#include "worker/engine/decode/decode_engine.h"

namespace bfio::worker {

inline constexpr int64_t kVocab = 50;
inline constexpr uint32_t kEos = 3;
// On a poisoned backend a sequence that contains this token has no finite logits, and the token is never
// generated.
inline constexpr uint32_t kPoison = 49;

// Writes each row's token into its page, and computes logits from all tokens that the page table addresses.
class HashBackend : public Backend {
 public:
  explicit HashBackend(const DecodeOptions& options, bool poisoned = false)
      : poisoned_(poisoned),
        page_tokens_(options.page_tokens),
        cache_(static_cast<size_t>(PageTable::PageLimit(PageTableOptionsOf(options)) * page_tokens_)) {
    facts_ = {kVocab, 200, {kEos}};
  }

  absl::string_view name() const override { return "hash"; }
  const ModelFacts& facts() const override { return facts_; }

  absl::Status Run(const StepPlan& plan, absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override {
    for (int32_t r = 0; r < plan.rows(); ++r) At(plan, r, plan.positions[r]) = plan.token_ids[r];
    for (int32_t i = 0; i < plan.draws(); ++i) {
      const int32_t row = plan.logit_rows[i];
      uint64_t hash = 1;
      bool poisoned = false;
      for (int32_t p = 0; p <= plan.positions[row]; ++p) {
        hash = Mix64(hash ^ At(plan, row, p));
        poisoned = poisoned || (poisoned_ && At(plan, row, p) == kPoison);
      }
      if (poisoned) {
        drawn[i].finite = false;
        continue;
      }
      Rng rng(hash);
      std::vector<float> logits;
      for (int64_t id = 0; id < kVocab; ++id) logits.push_back(static_cast<float>(2 * rng.Normal()));
      if (poisoned_) logits[kPoison] = -std::numeric_limits<float>::infinity();
      BFIO_ASSIGN_OR_RETURN(drawn[i], sampler_.Pick(logits, draws[i]));
    }
    return absl::OkStatus();
  }

 private:
  uint32_t& At(const StepPlan& plan, int32_t row, int32_t position) {
    const int32_t run = plan.row_runs[row];
    const PageId page = plan.pages.at(plan.run_pages[run] + position / page_tokens_);
    EXPECT_LT(plan.run_pages[run] + position / page_tokens_, plan.run_pages[run + 1]);
    return cache_.at(static_cast<size_t>(page * page_tokens_ + position % page_tokens_));
  }

  const bool poisoned_;
  const int32_t page_tokens_;
  std::vector<uint32_t> cache_;
  ModelFacts facts_;
  Sampler sampler_;
};

// The same with two plans under way.
class PipelinedHashBackend final : public HashBackend {
 public:
  using HashBackend::HashBackend;
  int32_t depth() const override { return 2; }
  absl::Status Start(const StepPlan& plan) override {
    under_way_.push_back(plan);
    return absl::OkStatus();
  }
  absl::Status Collect(absl::Span<const Draw> draws, absl::Span<Drawn> drawn) override {
    const StepPlan plan = std::move(under_way_.front());
    under_way_.pop_front();
    return Run(plan, draws, drawn);
  }

 private:
  std::deque<StepPlan> under_way_;
};

inline DecodeOptions Options() {
  return {.limits = {8, 400, 1000}, .page_tokens = 5, .step_tokens = 24};
}

template <typename B = HashBackend>
std::unique_ptr<DecodeEngine> Make(const DecodeOptions& options = Options(), bool poisoned = false) {
  auto engine = DecodeEngine::Create(options, std::make_unique<B>(options, poisoned));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}
inline std::unique_ptr<DecodeEngine> MakePipelined(const DecodeOptions& options) {
  return Make<PipelinedHashBackend>(options);
}
inline std::unique_ptr<DecodeEngine> MakePoisoned() {
  return Make(Options(), true);
}

inline SequenceRequest Request(Handle handle, int64_t prompt, int64_t output) {
  return {.handle = handle, .prompt_length = prompt, .max_new_tokens = output, .ignore_eos = true};
}

}  // namespace bfio::worker
