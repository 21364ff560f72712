// An engine server with a client of the test, whose calls the test answers.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "router/engine_link/engine_server.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {

using Described = absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&>;
using Loads = std::vector<EngineRankLoad>;
using GotLoads = absl::AnyInvocable<void(absl::StatusOr<Loads>) &&>;

struct TestRecords final : EngineRecords {
  explicit TestRecords(EngineClient::RecordCallbacks to) : callbacks(std::move(to)) {}
  void Cancel() override { cancelled = true; }
  Loads Take() override { return std::exchange(loads, {}); }

  EngineClient::RecordCallbacks callbacks;
  Loads loads;
  bool cancelled = false;
};

struct TestStream final : public EngineStream {
  explicit TestStream(EngineClient::StreamCallbacks to) : callbacks(std::move(to)) {}
  void Cancel() override { cancelled = true; }

  EngineClient::StreamCallbacks callbacks;
  bool cancelled = false;
};

// Calls of the client that have not been answered. Health checks are answered immediately, unless held.
struct Asked {
  bool hold_health = false;
  std::vector<absl::AnyInvocable<void(absl::Status) &&>> held;
  std::vector<Described> describe;
  std::vector<GotLoads> loads;
  std::vector<std::shared_ptr<TestRecords>> records;
  absl::Status health;
  // Rank and stream of each Generate call, in order.
  std::vector<std::optional<int32_t>> ranks;
  KvSource kv_source;
  std::vector<std::shared_ptr<TestStream>> streams;
};

class TestClient final : public EngineClient {
 public:
  explicit TestClient(Asked* asked) : asked_(asked) {}
  void Describe(absl::Duration, Described done) override { asked_->describe.push_back(std::move(done)); }
  void CheckHealth(absl::Duration, absl::AnyInvocable<void(absl::Status) &&> done) override {
    if (asked_->hold_health) {
      asked_->held.push_back(std::move(done));
    } else {
      std::move(done)(asked_->health);
    }
  }
  void GetLoads(absl::Duration, GotLoads done) override { asked_->loads.push_back(std::move(done)); }
  std::shared_ptr<EngineRecords> Subscribe(RecordCallbacks callbacks) override {
    asked_->records.push_back(std::make_shared<TestRecords>(std::move(callbacks)));
    return asked_->records.back();
  }
  std::shared_ptr<EngineStream> Generate(const EngineCall& call, std::optional<int32_t> rank,
                                         const std::string&, StreamCallbacks callbacks) override {
    asked_->kv_source = call.kv_source;
    asked_->ranks.push_back(rank);
    asked_->streams.push_back(std::make_shared<TestStream>(std::move(callbacks)));
    return asked_->streams.back();
  }

 private:
  Asked* const asked_;
};

class EngineServerTest : public ::testing::Test, public WorkerHandler {
 protected:
  EngineServerTest() {
    options_.make_client = [this](const EngineAddress&) {
      ++clients_;
      return std::make_unique<TestClient>(&asked_);
    };
    server_ = std::make_shared<EngineServer>(EngineAddress{.protocol = "vllm", .server = {"a", 1}}, &options_,
                                             this, events_, &servers_, nullptr);
  }
  core::RequestId NextId() override { return 0; }
  void OnWorkerEvent(std::shared_ptr<WorkerChannel> channel, WorkerEvent event) override {
    if (const auto* const hello = std::get_if<WorkerHello>(&event)) {
      prefix_cache_ = hello->prefix_cache;
      router_instance_ = hello->router_instance;
      seen_.emplace_back("joins");
      channel_ = std::move(channel);
      channels_.push_back(channel_);
    } else if (std::holds_alternative<Leave>(event)) {
      seen_.emplace_back("leaves");
    } else if (const auto* const report = std::get_if<StepReport>(&event)) {
      reported_[channel.get()] = report->engine_load;
      for (const core::PrefixChange& change : report->cache_changes) cached_blocks_.push_back(change);
      rejected_ += report->rejected.size();
      extra_slots_ = report->extra_slots;
      for (const core::CachedPrompt& cached : report->cached) cached_.push_back(cached.tokens);
      for (const StepReport::HandedOver& one : report->handed_over) handed_over_ = one.hand_off;
    } else if (std::holds_alternative<Gone>(event)) {
      gone_.push_back(channel->id());
    }
  }
  // The engine describes itself.
  void Describe(EngineDescription description = {.slots = 4, .max_sequence_tokens = 64}) {
    described_ = description;
    AnswerDescribe(std::move(description));
  }
  void AnswerDescribe(absl::StatusOr<EngineDescription> description) {
    ASSERT_EQ(asked_.describe.size(), 1u);
    Described done = std::move(asked_.describe.back());
    asked_.describe.clear();
    std::move(done)(std::move(description));
    RunEvents();
  }
  // The server attaches, described like that.
  void Attach(EngineDescription description = {.slots = 4, .max_sequence_tokens = 64}) {
    Later();
    Describe(std::move(description));
  }
  // The server is lost; it is well again after that.
  void Lose(const absl::Status& why = absl::UnavailableError("gone")) {
    asked_.health = why;
    Check();
    asked_.health = absl::OkStatus();
  }
  // Two ranks, with numbers 4 and 5 in reports, that have received their first plan.
  void ServeTwoRanks() {
    Attach({.ranks = 2, .first_rank = 4, .all_ranks = 8, .slots = 4, .max_sequence_tokens = 64});
    ASSERT_EQ(channels_.size(), 2u);
    for (const auto& channel : channels_) channel->SendEpoch({.epoch = 1});
    RunEvents();
  }
  // Number of the engine's requests that each rank reports to the router; -1: none reported.
  std::vector<int64_t> ReportedLoads() {
    std::vector<int64_t> loads;
    for (const auto& channel : channels_) {
      channel->SendPlan({.epoch = 1}, {});
      RunEvents();
      const std::optional<EngineLoad> load = reported_[channel.get()];
      loads.push_back(load ? load->requests : -1);
    }
    return loads;
  }
  void Record(Loads loads) {
    TestRecords& records = *asked_.records.back();
    records.loads = std::move(loads);
    records.callbacks.on_records();
    RunEvents();
  }
  void Answer(absl::StatusOr<Loads> loads) {
    ASSERT_EQ(asked_.loads.size(), 1u);
    std::move(asked_.loads.back())(std::move(loads));
    asked_.loads.clear();
    RunEvents();
  }
  // Sends the first plan, with one request, to the rank that attached last.
  void Place(bool hands_over = false) {
    channel_->SendEpoch({.epoch = 1});
    ClientRequest request;
    request.prompt_tokens = 3;
    request.max_new_tokens = 2;
    const std::vector<Assignment> assignments = {{.id = 7, .request = &request, .hands_over = hands_over}};
    channel_->SendPlan({.epoch = 1}, assignments);
    RunEvents();
  }
  // The router disconnects the rank that attached last, by default because it is silent.
  void CutOff(const absl::Status& why = absl::DeadlineExceededError("no step report in time")) {
    channel_->Close(why);
    RunEvents();
  }
  // A call of the rank that attached last brings tokens, in a message.
  void Bring(std::vector<uint32_t> ids, int64_t cached = 0) {
    EngineTokens tokens;
    tokens.ids = std::move(ids);
    tokens.message = std::make_shared<AMessage>();
    tokens.cached_prompt_tokens = cached;
    asked_.streams.back()->callbacks.on_tokens(std::move(tokens));
    RunEvents();
  }
  // A call of the rank that attached last fails.
  void Fail(size_t stream, const absl::Status& why = absl::InternalError("broken")) {
    std::move(asked_.streams.at(stream)->callbacks.on_end)(why);
    RunEvents();
  }
  // Waits until the next health check has been answered; the server's description is unchanged.
  void Check() {
    Later();
    if (!asked_.describe.empty()) AnswerDescribe(described_);
  }
  // Runs events until none are left.
  void RunEvents() {
    std::vector<EventQueue::Event> events;
    do {
      events_->WaitAndTake(absl::ZeroDuration(), events);
      for (EventQueue::Event& event : events) std::move(event)();
    } while (!events.empty());
  }
  // Simulates that the longest pause before attaching or asking again has passed.
  void Later() {
    server_->OnTimer(MonotonicNow() + EngineLink::kLongestRetry);
    RunEvents();
  }
  void Follow(uint64_t router, uint64_t epoch = 1) {
    channel_->SendEpoch({.epoch = epoch, .router_instance = router});
    RunEvents();
  }

  EngineLink::Options options_;
  Asked asked_;
  const std::shared_ptr<EventQueue> events_ = std::make_shared<EventQueue>();
  EngineServers servers_{1};
  std::shared_ptr<EngineServer> server_;
  std::vector<std::string> seen_;
  std::shared_ptr<WorkerChannel> channel_;
  std::vector<std::shared_ptr<WorkerChannel>> channels_;
  std::map<WorkerChannel*, std::optional<EngineLoad>> reported_;
  // Number of requests that ranks have rejected; ids of closed connections.
  size_t rejected_ = 0;
  std::vector<MemberId> gone_;
  // Whether the rank that attached last has a prefix cache; cached tokens that ranks have reported.
  bool prefix_cache_ = false;
  std::vector<int64_t> cached_;
  std::vector<core::PrefixChange> cached_blocks_;
  int32_t extra_slots_ = 0;
  // The last hand-off that a rank has reported.
  HandOffPtr handed_over_;
  // From the last hello.
  uint64_t router_instance_ = 0;
  // The engine's latest description; number of clients so far.
  EngineDescription described_;
  int clients_ = 0;
};

}  // namespace bfio::router
