// Requests from arrival to end, in any order of events: clients that send requests, resume them, cancel them
// and claim tokens that they have not received; workers that generate tokens, die, and announce requests of
// an earlier router (FromHeld and Recover).
//
// Token i of request number n is n * 1000 + i, so that a stream detects tokens of another request or out of
// order.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "router/core/scheduler/cluster.h"
#include "router/requests/check_request.h"
#include "router/requests/request_lifecycle.h"
#include "router/worker_link/held_request.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/client.h"

namespace {

using namespace bfio::router;  // NOLINT: a program of one file
using bfio::core::RequestId;
using bfio::fuzz::Check;
using bfio::fuzz::Input;

// Tokens that a client claims to have received have ids from this number on.
constexpr uint32_t kClaimed = 1'000'000'000;

// The owner of a request, who may read its tokens.
struct Owner {
  std::string tenant, name, secret;
  bool operator==(const Owner&) const = default;
};

class Clients {
 public:
  explicit Clients(Input& input)
      : input_(input),
        cluster_(Scheduler(), {"fcfs", {}}),
        tenants_(TenantLimits()),
        overload_({.max_waiting = 6, .max_waiting_bytes = 64, .max_waiting_kv = 4}),
        requests_(Options(), &cluster_, &tenants_, &overload_, now_) {
    Check(cluster_.Apply(bfio::core::AddGroup{0, bfio::core::GroupKind::kBarrier}).status.ok(),
          "a group is added");
  }

  void Play() {
    for (int i = 0; !input_.empty() && i < 500; ++i) {
      Event();
      Check(requests_.live() >= 0 && requests_.live() <= static_cast<int64_t>(owners_.size()),
            "live() counts");
      Check(requests_.kept_bytes() >= 0 && requests_.kept_bytes() <= Options().resume.budget_bytes,
            "what is kept is within its bound");
      requests_.flushes().clear();
      for (const std::string& promise : broken_) Check(false, promise.c_str());
    }
    EndWell();
  }

 private:
  static bfio::core::SchedulerOptions Scheduler() {
    bfio::core::SchedulerOptions options;
    options.max_waiting = 6;
    return options;
  }
  static RequestOptions Options() {
    RequestOptions options;
    options.resume.budget_bytes = 200;
    options.resume.request_bytes = 60;
    options.resume.max_early = 4;
    options.resume.max_early_bytes = 100;
    options.max_queue_time = absl::Seconds(8);
    return options;
  }

  void Event() {
    switch (input_.Byte() % 12) {
      case 0:
      case 1: return Arrive(false);
      case 2: return Arrive(true);
      case 3:
        if (!sinks_.empty()) {
          const uint64_t id = sinks_[input_.Byte() % sinks_.size()]->id();
          requests_.OnCancel(id, input_.Byte() % 2 == 0, now_);
        }
        return;
      case 4: {
        const Owner owner = AnyOwner();
        requests_.Abort(owner.tenant, owner.name, owner.secret, now_);
        return;
      }
      case 5:
        now_ += absl::Milliseconds(50) * input_.Byte();
        requests_.OnTimer(now_);
        Check(requests_.next_deadline() > now_, "no deadline is in the past after OnTimer");
        return;
      case 6:
        requests_.OnWorkerDied(0, 0);
        running_.clear();
        return OpenEpoch();
      case 7: return OpenEpoch();
      case 8:
        if (!sinks_.empty()) sinks_[input_.Byte() % sinks_.size()]->stuck = input_.Byte() % 2 == 0;
        return;
      default: return Step();
    }
  }

  // --- clients ---

  Owner AnyOwner() {
    const uint8_t byte = input_.Byte();
    return {byte % 2 == 0 ? "" : "acme", absl::StrCat("r", byte / 2 % 4), byte / 8 % 4 == 0 ? "" : "secret"};
  }
  uint32_t NumberOf(RequestId id, const Owner& owner) {
    const auto [it, fresh] = numbers_.try_emplace(id, static_cast<uint32_t>(owners_.size()));
    if (fresh) owners_.push_back(owner);
    return it->second;
  }
  std::vector<uint32_t> Tokens(uint32_t base, uint32_t from, uint32_t count) const {
    std::vector<uint32_t> tokens;
    for (uint32_t i = from; i < from + count; ++i) tokens.push_back(base + i);
    return tokens;
  }

  void Arrive(bool back) {
    const Owner owner = AnyOwner();
    const uint8_t how = input_.Byte();
    ClientRequest request;
    request.tenant = owner.tenant;
    request.request_id = owner.name;
    request.resume_token = owner.secret;
    request.resumable = back || how % 2 == 0;
    if (!back || how % 4 != 0) {
      request.prompt_tokens = 1 + how / 4 % 8;
      if (how / 32 % 2 == 0) request.prompt.assign(request.prompt_tokens, 7);
      request.max_new_tokens = 1 + input_.Byte() % 12;
      request.priority = static_cast<int32_t>(how / 64) - 1;
    }
    if (how == 255) {
      request.parent_id = "p";
      request.parent_timeout = absl::Seconds(1);
    }
    if (back) {
      request.resume_from = input_.Byte() % 8;
      if (request.has_prompt()) request.received = Tokens(kClaimed, 0, input_.Byte() % 8);
      request.resume_proven = request.has_prompt() && input_.Byte() % 2 == 0;
    }
    if (!CheckRequest(request, RequestLimits()).ok()) return;
    TenantLimiter::Ticket ticket;
    if (!back) {
      auto entered = tenants_.Enter(request, now_);
      Check(entered.ok(), "tenants without limits enter");
      ticket = *std::move(entered);
    }
    const RequestId id = ids_.Next();
    // A worker may have used that id before.
    numbers_[id] = static_cast<uint32_t>(owners_.size());
    owners_.push_back(owner);
    const auto sink = std::make_shared<Client>(id, request.resume_from.value_or(0), &broken_);
    sink->own = [this, owner](uint32_t index, uint32_t token) {
      return token % 1000 == index && (token >= kClaimed || owners_[token / 1000] == owner);
    };
    sinks_.push_back(sink);
    requests_.OnArrival({id, std::move(request), sink, std::move(ticket)}, now_);
  }

  // --- the worker ---

  void Step() {
    const bfio::core::Outcome outcome = cluster_.Apply(bfio::core::MakePlan{0, false});
    if (!outcome.plan) return;
    std::set<RequestId> placed;
    for (const bfio::core::Placement& placement : outcome.plan->placements) {
      const auto assignment = requests_.OnPlaced(placement.id, 0, placement.wait_steps, now_, model_);
      if (!assignment) continue;
      Check(!running_.contains(placement.id), "a request is placed once");
      Check(assignment->history->empty() || assignment->history->size() == assignment->first_index,
            "a placement goes on where the last one ended");
      running_[placement.id] = assignment->first_index;
      placed.insert(placement.id);
    }
    for (const bfio::core::Drop& drop : outcome.plan->drops) running_.erase(drop.id);
    Report(outcome.plan->apply_step, placed);
  }

  void Report(int64_t applied_plan, const std::set<RequestId>& placed) {
    std::vector<std::pair<RequestId, std::vector<uint32_t>>> made;
    std::vector<RequestId> finished, rejected, preempted;
    for (auto& [id, next] : running_) {
      const uint8_t how = input_.Byte();
      if (how >= 0xf0) {
        // Only a request that has just been placed can be refused.
        (placed.contains(id) ? rejected : preempted).push_back(id);
        continue;
      }
      made.emplace_back(id, Tokens(1000 * numbers_.at(id), next, how % 4));
      next += how % 4;
      if (how % 8 >= 6) finished.push_back(id);
    }
    const auto there = [&](RequestId id) { return cluster_.LocationOf(id).has_value(); };
    std::set<RequestId> known;
    for (const auto& [id, next] : running_) {
      if (there(id)) known.insert(id);
    }
    bfio::core::Report event{0, 0, {}};
    event.report.step = ++step_;
    event.report.applied_plan = applied_plan;
    event.report.finished = finished;
    event.report.rejected = rejected;
    event.report.preempted = preempted;
    Check(cluster_.Apply(event).status.ok(), "a good report is taken");
    // In the group's order, and only for requests that the scheduler knows.
    for (const auto& [id, tokens] : made) {
      if (known.contains(id)) requests_.OnTokens(id, tokens, {}, now_);
    }
    const FinishReason reason = input_.Byte() % 2 == 0 ? FinishReason::kStop : FinishReason::kLength;
    for (const RequestId id : finished) {
      running_.erase(id);
      if (known.contains(id)) requests_.OnFinished(id, reason, now_);
    }
    const bool full = input_.Byte() % 2 == 0;
    for (const RequestId id : rejected) {
      running_.erase(id);
      if (known.contains(id))
        requests_.OnRejected(id, full ? absl::ResourceExhaustedError("fuzz") : absl::InternalError("fuzz"),
                             now_);
    }
    for (const RequestId id : preempted) {
      running_.erase(id);
      if (known.contains(id) && !cluster_.Knows(id)) requests_.OnPreempted(id, now_);
    }
  }

  // A request as a worker that followed an earlier router announces it, possibly with contradictions.
  std::optional<HeldRequest> Held(std::vector<HeldActive>& active) {
    const Owner owner = AnyOwner();
    const uint8_t how = input_.Byte();
    ClientRequest request;
    request.tenant = owner.tenant;
    request.request_id = owner.name;
    request.resume_token = owner.secret;
    request.max_new_tokens = 1 + input_.Byte() % 12;
    const uint64_t handle = input_.Byte() % 8 == 0 ? input_.Number() : owners_.size() + input_.Byte() % 4;
    const auto [known, fresh] = announced_.try_emplace(handle, 0);
    if (fresh) known->second = ids_.Next();
    const RequestId id = known->second;
    const uint32_t number = NumberOf(id, owner);
    bfio::v1::HeldRequest wire;
    bfio::v1::Assignment& from = *wire.mutable_assignment();
    from.set_handle(id);
    from.set_origin(OriginOf(request, 1));
    const uint32_t first = how % 4, prompt = 1 + how / 4 % 4;
    from.set_first_index(first);
    from.set_prompt_length(first + prompt + (how == 0xfe ? 1 : 0));
    const std::vector<uint32_t> earlier = Tokens(1000 * number, 0, first);
    if (how / 16 % 2 == 0) {
      for (uint32_t i = 0; i < prompt; ++i) from.add_prompt_token_ids(7);
      from.mutable_prompt_token_ids()->Add(earlier.begin(), earlier.end());
    } else {
      from.mutable_earlier_token_ids()->Add(earlier.begin(), earlier.end());
    }
    const std::vector<uint32_t> made = Tokens(1000 * number, first, how / 32);
    wire.mutable_token_ids()->Add(made.begin(), made.end());
    if (input_.Byte() % 4 == 0) wire.set_ended(bfio::v1::FINISH_REASON_STOP);
    const uint8_t says = input_.Byte();
    if (says % 4 != 0)
      active.push_back({id, first + prompt + static_cast<int64_t>(made.size()),
                        static_cast<uint32_t>(made.size()) + (says == 255 ? 1 : 0)});
    auto held = FromHeld(wire, RequestLimits());
    if (!held.ok() || owners_[number] != owner) return std::nullopt;
    held->model = model_;
    return *std::move(held);
  }

  void OpenEpoch() {
    const uint8_t how = input_.Byte();
    if (how % 8 == 0) ++model_;
    bfio::core::EpochMember member;
    member.spec.slots = 4;
    member.spec.kv_tokens = 100;
    for (const auto& [id, next] : running_) member.resident.push_back({id, 5});
    std::vector<HeldRequest> held;
    std::vector<HeldActive> active;
    std::map<RequestId, uint32_t> made;
    for (int i = how / 8 % 4; i > 0; --i) {
      auto one = Held(active);
      // At most once per request: otherwise it would be unknown which of two was recovered.
      if (one && made.emplace(one->id, one->tokens.size()).second) held.push_back(*std::move(one));
    }
    requests_.SetTime(now_);
    member.recovered = requests_.Recover({"w", member.spec.kv_tokens, active}, std::move(held));
    for (const bfio::core::RequestSpec& spec : member.recovered) {
      Check(!running_.contains(spec.id), "what is recovered was not known");
      running_[spec.id] = made.at(spec.id);
      member.resident.push_back({spec.id, spec.prefill_tokens});
    }
    // Slots limit what a worker holds. A worker that brings more contradicts its hello, which the group
    // handles.
    const bfio::core::Outcome outcome = cluster_.Apply(bfio::core::OpenEpoch{0, {member}, model_});
    step_ = 0;
    GroupsView view;
    view.capacities = {{.model = model_, .kv_tokens = 100, .sequence_tokens = {10 + how / 32 * 2}}};
    view.complete = how % 2 == 0;
    view.expects_announcements = how % 4 == 1;
    view.models = {{model_, "model"}};
    for (auto id = outcome.displaced.rbegin(); id != outcome.displaced.rend(); ++id) {
      running_.erase(*id);
      requests_.OnLost(*id, now_);
    }
    requests_.SetGroups(view);
    requests_.OnEpochOpened(now_);
  }

  // A router that ends leaves no request behind.
  void EndWell() {
    requests_.BeginDrain(now_);
    requests_.EndAll(now_);
    for (const auto& sink : sinks_) Check(!sink->open(), "every stream ends");
    Check(requests_.live() == 0, "no request is live after the end");
    Check(overload_.committed_kv() == 0 && overload_.waiting_bytes() == 0, "bounds are given back");
    Check(cluster_.waiting() == 0, "nothing waits for a worker");
    now_ += Options().resume.timeout;
    requests_.OnTimer(now_);
    Check(requests_.kept_bytes() == 0, "what was kept is forgotten in time");
  }

  Input& input_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  bfio::core::Cluster cluster_;
  Tenants tenants_;
  OverloadControl overload_;
  RequestIds ids_{RequestId{1}};
  // The ids of announced requests, by the handle that the worker states (worker_link/handles.h).
  std::map<uint64_t, RequestId> announced_;
  // By request number.
  std::vector<Owner> owners_ = {{}};
  std::vector<std::string> broken_;
  std::map<RequestId, uint32_t> numbers_;
  std::vector<std::shared_ptr<Client>> sinks_;
  // The worker's running requests, with the index of the next token of each.
  std::map<RequestId, uint32_t> running_;
  RequestLifecycle requests_;
  int64_t step_ = 0;
  uint32_t model_ = 1;
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  spdlog::set_level(spdlog::level::off);
  Input input(data, size);
  Clients(input).Play();
  return 0;
}
