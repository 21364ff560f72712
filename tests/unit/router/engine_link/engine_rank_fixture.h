// An engine's rank whose inputs a test provides step by step.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "router/engine_link/streamed_rank.h"

namespace bfio::router {

template <typename Kind>
class RankTest : public ::testing::Test {
 protected:
  void Epoch(uint64_t epoch, std::vector<core::RequestId> drop = {}) {
    EpochOffer offer = {
        .epoch = epoch_ = epoch, .step_timeout = step_timeout_, .cancellations = std::move(drop)};
    plan_ = 0;
    rank_.OnEpoch(offer, now_, out_);
  }
  // Places requests with prompts of prompt_tokens_.
  void Plan(std::vector<core::RequestId> place, std::vector<core::RequestId> cancel = {}) {
    PlanPart plan = {.epoch = epoch_, .apply_step = ++plan_, .cancellations = std::move(cancel)};
    std::vector<EngineRank::Placement> placements;
    for (const core::RequestId id : place) placements.push_back({id, CallOf(id)});
    rank_.OnPlan(plan, std::move(placements), now_, out_);
  }
  // The first epoch, with these requests, of a rank with these options.
  void Begin(std::vector<core::RequestId> place, const EngineRank::Options& options = {}) {
    rank_ = Kind(options);
    Epoch(1);
    Plan(std::move(place));
    Reports();
  }
  EngineCall CallOf(core::RequestId id) {
    return {.id = id,
            .passed = passed_,
            .prompt = std::vector<uint32_t>(prompt_tokens_, 3),
            .max_new_tokens = max_new_tokens_,
            .refusals = refusals_};
  }
  void Token(CallNumber call, uint32_t token, int64_t cached = 0) {
    rank_.OnTokens(call, {.ids = {token}, .cached_prompt_tokens = cached}, now_, out_);
  }
  void Finish(CallNumber call, EngineFinish finish = EngineFinish::kLength) {
    rank_.OnFinished(call, {finish, nullptr}, now_, out_);
  }
  void Fail(CallNumber call, const absl::Status& why) { rank_.OnFailed(call, why, now_, out_); }
  void Load(int64_t requests, int64_t tokens, std::optional<int64_t> generated = std::nullopt) {
    rank_.OnLoad(EngineLoad{requests, tokens, generated}, now_, out_);
  }
  void Wait(absl::Duration time) {
    now_ += time;
    rank_.OnTimer(now_, out_);
  }
  // How long the rank continues to report steps while the engine sends nothing; at most an hour.
  absl::Duration ReportedFor() {
    const absl::Time start = now_;
    while (rank_.next_deadline() != absl::InfiniteFuture() && now_ - start < absl::Hours(1))
      Wait(rank_.next_deadline() - now_);
    Reports();
    return now_ - start;
  }
  // Returns the reports so far; the only one.
  std::vector<StepReport> Reports() { return std::exchange(out_.reports, {}); }
  StepReport Report() {
    std::vector<StepReport> reports = Reports();
    EXPECT_EQ(reports.size(), 1u);
    return reports.empty() ? StepReport() : std::move(reports.back());
  }
  StepReport Last() { return Reports().back(); }

  Kind rank_;
  EngineRank::Output out_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t epoch_ = 0;
  int64_t plan_ = 0;
  size_t prompt_tokens_ = 10;
  uint32_t max_new_tokens_ = 5;
  absl::Duration step_timeout_ = absl::Seconds(10);
  Passing passed_;
  int32_t refusals_ = 0;
};

using EngineRankTest = RankTest<StreamedRank>;

class AMessage final : public Passed {
 public:
  AMessage() : Passed(1) {}
};

}  // namespace bfio::router
