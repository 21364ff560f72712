// The router's end of the worker protocol: workers that join, answer, report, fail, leave and send any
// messages, in any order, and the passage of time. The groups' commands are compared with a simple reference
// (tests/testing/group_checker.h).
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/core/scheduler/cluster.h"
#include "router/group/group_set.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/group_checker.h"

namespace {

using namespace bfio::router;  // NOLINT: a program of one file
using bfio::fuzz::Check;
using bfio::fuzz::Input;

// Requests that are placed again until they have ended.
class FuzzBook final : public RequestBook {
 public:
  std::vector<bfio::core::RequestSpec> Recover(absl::string_view worker_id, std::vector<HeldRequest> held,
                                               absl::Span<const HeldActive> active) override {
    std::vector<bfio::core::RequestSpec> specs;
    for (const HeldRequest& request : held) {
      const bool there = std::any_of(active.begin(), active.end(),
                                     [&](const HeldActive& one) { return one.id == request.id; });
      if (!there || cluster->Knows(request.id) || !taken.insert(request.id).second) continue;
      specs.push_back(SpecOf(request.id));
      on_recovered(request.id, worker_id);
    }
    return specs;
  }
  std::optional<uint32_t> ReceivedSincePlaced(bfio::core::RequestId id) const override {
    return id % 3 == 0 ? std::nullopt : std::optional<uint32_t>(id % 2);
  }
  void OnWorkerDied(bfio::core::GroupIndex, bfio::core::WorkerIndex) override {}
  void CountTokens(uint32_t, uint32_t) override {}

  static bfio::core::RequestSpec SpecOf(bfio::core::RequestId id) {
    bfio::core::RequestSpec spec;
    spec.id = id;
    spec.prefill_tokens = 10;
    spec.max_new_tokens = 20;
    return spec;
  }

  bfio::core::Cluster* cluster = nullptr;
  std::set<bfio::core::RequestId> taken;
  std::function<void(bfio::core::RequestId, absl::string_view)> on_recovered;
};

class Router {
 public:
  Router(Input& input, const GroupSetOptions& options)
      : input_(input), cluster_({}, {"fcfs", {}}), groups_(Borrow(options, &cluster_), &cluster_, &book_) {}

  void Play() {
    for (int i = 0; !input_.empty() && i < 500; ++i) {
      Commands out;
      reporter_ = std::nullopt;
      Event(out);
      Finish(out);
    }
    EndWell();
  }

 private:
  const GroupSetOptions& Borrow(const GroupSetOptions& options, bfio::core::Cluster* cluster) {
    book_.cluster = cluster;
    book_.on_recovered = [this](bfio::core::RequestId id, absl::string_view worker_id) {
      for (const auto& group : groups_.groups()) {
        if (const auto member = group->FindWorker(worker_id)) checker_.OnRecovered(id, *member);
      }
    };
    return options;
  }

  MemberId AnyMember() { return members_ == 0 ? 0 : 1 + input_.Byte() % members_; }
  Group& GroupOf(MemberId member) {
    for (const auto& group : groups_.groups()) {
      if (group->Has(member)) return *group;
    }
    return *groups_.groups().front();
  }
  std::vector<HeldActive> Active() {
    std::vector<HeldActive> active(input_.Byte() % 4);
    for (HeldActive& one : active) {
      one = {input_.Byte() % 16u, static_cast<int64_t>(input_.Number() >> 24), input_.Byte() % 3u};
    }
    return active;
  }

  void Event(Commands& out) {
    const MemberId member = AnyMember();
    reporter_ = member;
    switch (input_.Byte() % 12) {
      case 0:
        if (members_ < 64) Hello(out);
        return;
      case 1:
      case 2:
        return Ready(member, out);
      case 3:
      case 4:
        return Report(member, out);
      case 5:
        return groups_.OnGone(member, now_, out);
      case 6:
        return groups_.Expel(member, absl::UnknownError("fuzz"), now_, out);
      case 7:
        if (input_.Byte() % 2 == 0) return groups_.OnLeave(member, "fuzz", now_, out);
        if (const uint8_t who = input_.Byte(); who < 128) {
          groups_.Drain(absl::StrCat("w", who % 6), now_, out).IgnoreError();
        } else {
          groups_.Undrain(absl::StrCat("w", who % 6), out).IgnoreError();
        }
        return;
      case 8:
        now_ += absl::Milliseconds(50) * input_.Byte();
        groups_.OnTimer(now_, out);
        checker_.CompareTime(groups_, now_);
        return;
      case 9: {
        const bfio::core::RequestId id = input_.Byte() % 16u;
        if (input_.Byte() % 4 != 0) {
          if (book_.taken.insert(id).second) cluster_.Apply(bfio::core::Enqueue{FuzzBook::SpecOf(id)});
        } else {
          checker_.OnCancelled(id);
          cluster_.Apply(bfio::core::Cancel{id});
        }
        return;
      }
      case 10:
        return Announce(member, out);
      default:
        return Decide(out);
    }
  }

  void Hello(Commands& out) {
    WorkerHello hello;
    hello.worker_id = absl::StrCat("w", input_.Byte() % 6);
    const uint8_t group = input_.Byte();
    if (group % 4 == 0) hello.group = absl::StrCat("g", group % 3);
    if (group % 8 == 7) hello.model = "another";
    hello.slots = 2;
    hello.kv_tokens = hello.max_sequence_tokens = 1000;
    hello.barrier = input_.Byte() % 8 == 0 ? "nccl" : "star";
    hello.steps_alone = input_.Byte() % 8 != 0;
    hello.router_instance = input_.Byte() % 4;
    hello.active = Active();
    reporter_ = ++members_;
    // Sometimes the same process joins again.
    hello.worker_instance = hello.router_instance;
    hello.stream = members_;
    checker_.OnHello(members_);
    groups_.OnHello(members_, hello, now_, out);
  }

  void Ready(MemberId member, Commands& out) {
    EpochReady ready;
    ready.epoch = input_.Byte() % 8 == 0 ? input_.Number() : GroupOf(member).epoch();
    if (input_.Byte() % 8 == 0) ready.error = "fuzz";
    if (input_.Byte() % 4 == 0) ready.missing_ranks = {input_.Byte()};
    ready.active = Active();
    if (ready.error.empty()) checker_.OnReady(member, ready.epoch);
    groups_.OnEpochReady(member, ready, now_, out);
  }

  void Report(MemberId member, Commands& out) {
    StepReport report;
    report.epoch = input_.Byte() % 8 == 0 ? input_.Number() : GroupOf(member).epoch();
    int64_t& step = steps_[{member, report.epoch}];
    report.step = input_.Byte() % 8 == 0 ? input_.Byte() : ++step;
    report.applied_plan =
        input_.Byte() % 8 == 0 ? input_.Byte() : std::max<int64_t>(0, report.step - input_.Byte() % 2);
    report.load_tokens = static_cast<int64_t>(input_.Number() >> 24);
    for (int i = input_.Byte() % 4; i > 0; --i) {
      const RequestTokens tokens = {input_.Byte() % 16u, input_.Byte() % 4u};
      report.tokens.push_back(tokens);
      report.token_ids.resize(report.token_ids.size() + tokens.count);
    }
    // The edge rejects reports in which a request ends twice.
    std::set<bfio::core::RequestId> ended;
    for (int i = input_.Byte() % 4; i > 0; --i) {
      const bfio::core::RequestId id = input_.Byte() % 16u;
      if (!ended.insert(id).second) continue;
      const uint8_t how = input_.Byte() % 4;
      if (how < 2) report.finished.push_back({id, how == 0 ? FinishReason::kLength : FinishReason::kStop});
      if (how == 2) report.rejected.push_back({id, absl::ResourceExhaustedError("fuzz")});
      if (how == 3) report.preempted.push_back(id);
    }
    const uint8_t took = input_.Byte();
    report.local = report.group_max_local = absl::Microseconds(took);
    // The edge accepts any finite measurements.
    if (took % 4 == 1) {
      report.cost.emplace();
      report.cost->c = bfio::FittedValue{took * 1e-6, 1e-7};
      report.cost->tl = bfio::FittedValue{took / 8 * 1e-8, 1e-10};
      report.cost->steps = 1000;
    }
    if (took % 4 == 1) report.batch_cost = bfio::BatchCost{.c_s = took * 1e-3, .a_s_per_token = 1e-6};
    if (took % 4 == 2) {
      report.prefill = bfio::core::PrefillReport{took / 2, {}};
      for (uint8_t i = 0; i < took % 3; ++i)
        report.prefill->prompts.push_back({input_.Byte() % 16u, 1 + took});
    }
    if (took % 4 == 3) {
      report.energy.emplace();
      for (const RequestTokens& one : report.tokens) report.hints.push_back({one.id, took / 255.0});
    }
    report.group_idle = input_.Byte() % 2 == 0;
    if (input_.Byte() % 16 == 0) {
      report.barrier_error = "fuzz";
      report.missing_ranks = {input_.Byte(), input_.Byte() % 3u};
    }
    groups_.OnReport(member, report, now_, out);
    // The spans of `report` are valid until here.
    Finish(out);
    out.clear();
  }

  void Announce(MemberId member, Commands& out) {
    Announcement announcement;
    announcement.epoch = GroupOf(member).epoch();
    for (int i = input_.Byte() % 4; i > 0; --i) {
      HeldRequest held;
      held.id = input_.Byte() % 16u;
      announcement.requests.push_back(held);
      announcement.bytes.push_back(input_.Byte());
    }
    groups_.OnAnnouncement(member, announcement, now_, out);
  }

  void Decide(Commands& out) {
    for (const bfio::core::GroupIndex index : cluster_.DecisionOrder()) {
      Group& group = *groups_.Find(index);
      while (group.Decide(now_, out)) group.Decided(absl::Microseconds(1), out);
    }
    groups_.Settle(now_, out);
  }

  // Carries commands out, and compares.
  void Finish(const Commands& out) {
    checker_.Observe(out, reporter_);
    for (const Command& command : out) {
      if (const auto* lost = std::get_if<RequestLost>(&command)) PlaceAgain(lost->id);
      if (const auto* taken_out = std::get_if<RequestPreempted>(&command)) PlaceAgain(taken_out->id);
      if (const auto* finished = std::get_if<RequestFinished>(&command)) book_.taken.insert(finished->id);
    }
    checker_.Compare(cluster_, groups_);
    for (const std::string& promise : checker_.broken()) Check(false, promise.c_str());
  }
  void PlaceAgain(bfio::core::RequestId id) {
    Check(cluster_.Apply(bfio::core::Requeue{FuzzBook::SpecOf(id)}).status.ok(), "what is lost is forgotten");
  }

  // Without further faults, and when all workers answer, every group with enough members serves.
  void EndWell() {
    const auto waits = [&](const auto& group) {
      return !group->serving() && !group->empty() && group->next_deadline() != absl::InfiniteFuture();
    };
    const auto& groups = groups_.groups();
    for (int round = 0; round < 64 && std::any_of(groups.begin(), groups.end(), waits); ++round) {
      Commands out;
      now_ = std::max(now_, groups_.next_deadline());
      groups_.OnTimer(now_, out);
      Finish(out);
      for (const auto& group : groups) {
        for (const MemberView& member : group->Members()) {
          Commands answered;
          EpochReady ready;
          ready.epoch = group->epoch();
          checker_.OnReady(member.id, ready.epoch);
          reporter_ = member.id;
          groups_.OnEpochReady(member.id, ready, now_, answered);
          Finish(answered);
        }
      }
    }
    Check(std::none_of(groups.begin(), groups.end(), waits),
          "a group whose members all answer serves in the end");
  }

  Input& input_;
  FuzzBook book_;
  GroupChecker checker_;
  bfio::core::Cluster cluster_;
  GroupSet groups_;
  absl::Time now_ = absl::UnixEpoch();
  MemberId members_ = 0;
  std::optional<MemberId> reporter_;
  std::map<std::pair<MemberId, uint64_t>, int64_t> steps_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  GroupSetOptions options;
  const uint8_t kind = input.Byte();
  options.group.workers = 1 + kind % 3;
  options.groups = 1 + kind / 3 % 2;
  if (kind / 6 % 3 == 0) options.group.kind = bfio::core::GroupKind::kIndependent;
  // Small, so that announcements reach the limit.
  options.group.max_announced_bytes = 600;
  if (kind / 18 % 2 == 0) options.group.plan_mode = bfio::core::PlanMode::kLockstep;
  Router(input, options).Play();
  return 0;
}
