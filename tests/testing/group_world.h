// Groups with a real scheduler, a simple book of requests and workers that follow the protocol, without
// sockets and clocks.
//
// Purpose: whole lifecycles in virtual time. A test says when a worker reads its next message, steps, breaks
// its connection or dies; every command is checked (group_checker.h) and carried out. Tokens are a function
// of request and index, so a token that is missing, doubled or out of order shows. Threads: one.
#ifndef BFIO_TESTS_TESTING_GROUP_WORLD_H_
#define BFIO_TESTS_TESTING_GROUP_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "router/core/scheduler/cluster.h"
#include "router/group/commands.h"
#include "router/group/group_set.h"
#include "tests/testing/group_checker.h"

namespace bfio::router {

inline uint32_t TokenOf(core::RequestId id, uint32_t index) {
  return static_cast<uint32_t>(id * 1000003 + index);
}

// What router/requests is for the groups, as simply as it goes.
class SimpleBook final : public RequestBook {
 public:
  struct Record {
    uint32_t prompt = 0, max_new = 0;
    bool resumable = true;
    uint32_t delivered = 0;
    // Of the present placement.
    uint32_t placed_at = 0;
    // Of its tokens: the router's number, and the name that its worker has.
    uint32_t model = 0;
    std::string model_name;
  };

  SimpleBook(core::Cluster* cluster, GroupChecker* checker) : cluster_(cluster), checker_(checker) {}

  absl::Status Submit(core::RequestId id, uint32_t prompt, uint32_t max_new, bool resumable = true) {
    Record& record = live[id] = {.prompt = prompt, .max_new = max_new, .resumable = resumable};
    absl::Status status = cluster_->Apply(core::Enqueue{SpecOf(id, record)}).status;
    if (!status.ok()) live.erase(id);
    return status;
  }
  void Cancel(core::RequestId id) {
    checker_->OnCancelled(id);
    cluster_->Apply(core::Cancel{id});
    live.erase(id);
  }

  static core::RequestSpec SpecOf(core::RequestId id, const Record& record) {
    core::RequestSpec spec;
    spec.id = id;
    spec.prefill_tokens = record.prompt + record.delivered;
    spec.max_new_tokens = record.max_new - record.delivered;
    spec.generated_tokens = record.delivered;
    if (record.delivered > 0) spec.model = record.model;
    return spec;
  }

  // --- commands ---

  void OnTokens(const TokensMade& made) {
    Record* record = Find(made.id);
    if (record == nullptr) return;
    for (const uint32_t token : made.tokens) {
      if (record->delivered >= record->max_new)
        checker_->Broken("a request gets no more tokens than it asked for");
      if (token != TokenOf(made.id, record->delivered))
        checker_->Broken(
            absl::StrCat("token ", record->delivered, " of request ", made.id, " is not its own"));
      ++record->delivered;
    }
  }
  void OnFinished(core::RequestId id) {
    Record* record = Find(id);
    if (record == nullptr) return;
    if (record->delivered != record->max_new) checker_->Broken("a request ends with its last token");
    Complete(id);
  }
  void OnRejected(const RequestRejected& rejected) {
    if (Find(rejected.id) == nullptr || absl::IsResourceExhausted(rejected.status)) return;
    cluster_->Apply(core::Cancel{rejected.id});
    checker_->OnCancelled(rejected.id);
    live.erase(rejected.id);
    failed[rejected.id] = rejected.status;
  }
  void PlaceAgain(core::RequestId id) {
    Record* record = Find(id);
    if (record == nullptr) return;
    ++placed_again;
    if (record->delivered >= record->max_new) return Complete(id);
    const core::RequestSpec spec = SpecOf(id, *record);
    if (!cluster_->Apply(core::Requeue{spec}).status.ok())
      checker_->Broken("the scheduler has forgotten what is lost");
  }
  // Ends what waits for a model that is none of these.
  void EndStranded(const std::map<uint32_t, std::string>& models) {
    std::erase_if(live, [&](const auto& entry) {
      const auto& [id, record] = entry;
      if (record.delivered == 0 || record.model == 0 || cluster_->LocationOf(id)) return false;
      if (models.contains(record.model)) return false;
      cluster_->Apply(core::Cancel{id});
      failed[id] = absl::FailedPreconditionError("its model is gone");
      return true;
    });
  }
  // False: no client waits for it.
  bool OnPlaced(core::RequestId id, uint32_t model) {
    Record* record = Find(id);
    if (record == nullptr) {
      cluster_->Apply(core::Cancel{id});
      return false;
    }
    record->placed_at = record->delivered;
    if (record->delivered == 0 || record->model == 0) record->model = model;
    return true;
  }

  // --- RequestBook ---

  std::vector<core::RequestSpec> Recover(absl::string_view worker_id, std::vector<HeldRequest> held,
                                         absl::Span<const HeldActive> active) override {
    std::vector<core::RequestSpec> specs;
    for (HeldRequest& request : held) {
      if (live.contains(request.id) || completed.contains(request.id)) continue;
      const auto resident =
          std::find_if(active.begin(), active.end(), [&](const HeldActive& a) { return a.id == request.id; });
      const auto known = static_cast<uint32_t>(request.tokens.size()) - request.first_index;
      if (!request.ended && (resident == active.end() || resident->generated_tokens != known)) continue;
      Record& record = live[request.id] = {.prompt = request.request.prompt_tokens,
                                           .max_new = request.request.max_new_tokens};
      record.model = request.model;
      record.delivered = static_cast<uint32_t>(request.tokens.size());
      record.placed_at = request.first_index;
      ++recovered;
      if (request.ended) {
        Complete(request.id);
      } else {
        specs.push_back(SpecOf(request.id, record));
        if (record.model == 0) checker_->Broken("a group says which model it recovers");
        if (on_recovered) on_recovered(request.id, worker_id);
      }
    }
    return specs;
  }
  std::optional<uint32_t> ReceivedSincePlaced(core::RequestId id) const override {
    const auto it = live.find(id);
    if (it == live.end()) return std::nullopt;
    return it->second.delivered - it->second.placed_at;
  }
  void OnWorkerDied(core::GroupIndex group, core::WorkerIndex worker) override {
    for (const auto& [id, record] : live) {
      if (cluster_->LocationOf(id) == core::Cluster::Location{group, worker}) died_with.push_back(id);
    }
  }
  void CountTokens(uint32_t generated, uint32_t received) override {
    lost += generated > received ? generated - received : 0;
    doubled += received > generated ? received - generated : 0;
  }

  std::map<core::RequestId, Record> live;
  std::map<core::RequestId, absl::Status> failed;
  std::map<core::RequestId, Record> completed;
  // Requests by the deaths of workers that they were on.
  std::vector<core::RequestId> died_with;
  int64_t placed_again = 0, recovered = 0, lost = 0, doubled = 0;
  std::function<void(core::RequestId, absl::string_view)> on_recovered;

 private:
  Record* Find(core::RequestId id) {
    const auto it = live.find(id);
    return it == live.end() ? nullptr : &it->second;
  }
  void Complete(core::RequestId id) {
    completed[id] = live.at(id);
    live.erase(id);
  }

  core::Cluster* const cluster_;
  GroupChecker* const checker_;
};

// A plan as it is on its way to a worker.
struct SentPlan {
  struct Assigned {
    core::RequestId id = 0;
    uint32_t prompt = 0, first_index = 0, max_new = 0;
    bool resumable = true;
  };
  PlanPart part;
  std::vector<Assigned> assigned;
};

// One rank, as proto/bfio/v1/worker.proto wants it.
struct SimWorker {
  // Of one request: `s` tokens of prompt, the tokens from first_index on, of max_new in all.
  struct Resident {
    uint32_t s = 0, first_index = 0, made = 0, max_new = 0;
    bool resumable = true;

    uint32_t delivered() const { return first_index + made; }
    bool ended() const { return delivered() >= max_new; }
    int64_t kv() const { return int64_t{s} + made; }
    int64_t reserved() const { return int64_t{s} + (max_new - first_index) - 1; }
  };

  std::string name, group, model;
  int32_t slots = 4;
  int64_t kv_tokens = 1000;
  bool steps_alone = true;
  std::string barrier = "star";

  // Of this process's life, where it tells; its connections so far.
  uint64_t instance = 0, streams = 0;
  // 0: not connected.
  MemberId member = 0;
  std::deque<std::variant<EpochOffer, SentPlan, SendShutdown, CloseMember>> inbox;
  uint64_t followed = 0;
  // The epoch that it is in; nothing outside one.
  std::optional<EpochOffer> epoch;
  std::deque<SentPlan> plans;
  std::map<core::RequestId, Resident> residents;
  // Resumable ones that ended while no router was there.
  std::map<core::RequestId, Resident> ended;
  int64_t step = 1, applied = 0;
  bool parked = true, shut_down = false;
  // Messages that the router has not got yet.
  std::deque<std::function<void()>> outbox;
  // Requests that it refuses the next time, and how.
  std::map<core::RequestId, absl::Status> refuses;

  WorkerHello Hello() const {
    WorkerHello hello;
    hello.worker_id = name;
    hello.group = group;
    hello.model = model;
    hello.slots = slots;
    hello.kv_tokens = hello.max_sequence_tokens = kv_tokens;
    hello.engine = "test";
    hello.barrier = barrier;
    hello.communicator_offer = absl::StrCat("at ", name);
    hello.active = Active();
    hello.router_instance = followed;
    hello.steps_alone = steps_alone;
    hello.worker_instance = instance;
    hello.stream = streams;
    return hello;
  }
  std::vector<HeldActive> Active() const {
    std::vector<HeldActive> active;
    for (const auto& [id, resident] : residents) active.push_back({id, resident.kv(), resident.made});
    return active;
  }
  Announcement Announce() const {
    Announcement announcement;
    announcement.epoch = epoch->epoch;
    const auto add = [&](core::RequestId id, const Resident& resident) {
      if (!resident.resumable) return;
      HeldRequest& held = announcement.requests.emplace_back();
      held.id = id;
      held.request.request_id = absl::StrCat(id);
      held.request.prompt_tokens = resident.s - resident.first_index;
      held.request.max_new_tokens = resident.max_new;
      held.first_index = resident.first_index;
      for (uint32_t i = 0; i < resident.delivered(); ++i) held.tokens.push_back(TokenOf(id, i));
      if (resident.ended()) held.ended = FinishReason::kLength;
      announcement.bytes.push_back(100);
    };
    for (const auto& [id, resident] : residents) add(id, resident);
    for (const auto& [id, resident] : ended) add(id, resident);
    return announcement;
  }
  void LeaveEpoch() {
    epoch.reset();
    plans.clear();
    step = 1;
    applied = 0;
    parked = true;
  }
  bool lockstep() const { return epoch->plan_mode == core::PlanMode::kLockstep; }
  bool CanStep() const {
    if (!epoch) return false;
    if (!parked && (epoch->independent || !lockstep())) return true;
    return !plans.empty() && (epoch->independent || plans.back().part.apply_step >= step);
  }
  int64_t Pending() const {
    int64_t pending = static_cast<int64_t>(residents.size());
    for (const SentPlan& plan : plans) pending += static_cast<int64_t>(plan.assigned.size());
    return pending;
  }
  // The local part of its next step. REQUIRES: CanStep().
  StepReport Compute() {
    StepReport report;
    report.epoch = epoch->epoch;
    report.step = step++;
    while (!plans.empty() && (epoch->independent || plans.front().part.apply_step <= report.step)) {
      followed = epoch->router_instance;
      applied = plans.front().part.apply_step;
      for (const core::RequestId id : plans.front().part.cancellations) residents.erase(id);
      for (const SentPlan::Assigned& request : plans.front().assigned) Admit(request, report);
      plans.pop_front();
    }
    report.applied_plan = applied;
    for (auto it = residents.begin(); it != residents.end();) {
      auto& [id, resident] = *it;
      report.load_tokens += resident.kv();
      report.tokens.push_back({id, 1});
      report.token_ids.push_back(TokenOf(id, resident.delivered()));
      ++resident.made;
      if (resident.ended()) {
        report.finished.push_back({id, FinishReason::kLength});
        it = residents.erase(it);
      } else {
        ++it;
      }
    }
    report.active_requests = static_cast<uint32_t>(residents.size());
    report.local = report.group_max_local = absl::Milliseconds(10);
    return report;
  }

 private:
  void Admit(const SentPlan::Assigned& request, StepReport& report) {
    Resident resident{request.prompt + request.first_index, request.first_index, 0, request.max_new,
                      request.resumable};
    int64_t kv = resident.reserved();
    for (const auto& [id, other] : residents) kv += other.reserved();
    absl::Status status;
    if (const auto it = refuses.find(request.id); it != refuses.end()) {
      status = it->second;
      refuses.erase(it);
    } else if (static_cast<int32_t>(residents.size()) >= slots || kv > kv_tokens) {
      status = absl::ResourceExhaustedError("no room");
    }
    if (status.ok()) {
      residents[request.id] = resident;
    } else {
      report.rejected.push_back({request.id, status});
    }
  }
};

class GroupWorld {
 public:
  struct Router {
    Router(const GroupSetOptions& options, const core::SchedulerOptions& scheduler, const std::string& policy)
        : cluster(scheduler, {policy, {}}), book(&cluster, &checker), groups(options, &cluster, &book) {}
    GroupChecker checker;
    core::Cluster cluster;
    SimpleBook book;
    GroupSet groups;
  };

  explicit GroupWorld(GroupSetOptions options, const std::string& policy = "least_tokens")
      : options_(std::move(options)), policy_(policy) {
    Start();
  }

  // --- the router ---

  // A restarted router; connections to the one before are gone.
  void Start() {
    for (auto& [name, worker] : workers) {
      worker.member = 0;
      worker.inbox.clear();
      worker.outbox.clear();
      worker.LeaveEpoch();
    }
    if (router_ != nullptr) {
      broken_.insert(broken_.end(), checker().broken().begin(), checker().broken().end());
      ++options_.group.instance;
    }
    core::SchedulerOptions scheduler;
    scheduler.plan_mode = options_.group.plan_mode;
    router_ = std::make_unique<Router>(options_, scheduler, policy_);
    router_->book.on_recovered = [this](core::RequestId id, absl::string_view name) {
      const SimWorker& worker = workers.at(std::string(name));
      checker().OnRecovered(id, worker.member);
      book().live.at(id).model_name = worker.model;
    };
  }
  // Of the next router.
  void SetOptions(const GroupSetOptions& options) { options_ = options; }
  GroupSet& groups() { return router_->groups; }
  Group& group(size_t i = 0) { return *router_->groups.groups().at(i); }
  core::Cluster& cluster() { return router_->cluster; }
  SimpleBook& book() { return router_->book; }
  GroupChecker& checker() { return router_->checker; }
  // Of all routers so far.
  std::vector<std::string> broken() const {
    std::vector<std::string> all = broken_;
    all.insert(all.end(), router_->checker.broken().begin(), router_->checker.broken().end());
    return all;
  }

  // Handles an event and what follows from it. `reporter`: whose message it is.
  void Do(const std::function<void(GroupSet&, Commands&)>& event,
          std::optional<MemberId> reporter = std::nullopt) {
    Commands out;
    event(groups(), out);
    Carry(out, reporter);
    book().EndStranded(groups().models());
    if (decide) Decide();
    checker().Compare(cluster(), groups());
  }
  // As the decision thread: all groups, until none has anything to plan.
  void Decide() {
    for (const core::GroupIndex index : cluster().DecisionOrder()) {
      Group& group = *groups().Find(index);
      for (;;) {
        Commands out;
        const bool decided = group.Decide(now, out);
        Carry(out);
        if (!decided) break;
        Commands told;
        group.Decided(absl::Microseconds(20), told);
        Carry(told);
      }
    }
    for (const auto& group : groups().groups()) {
      Commands out;
      group->Settle(now, out);
      Carry(out);
    }
  }
  void Timer() {
    Do([&](GroupSet& set, Commands& out) { set.OnTimer(now, out); });
    checker().CompareTime(groups(), now);
  }
  // Time goes on to the next deadline; returns how far.
  absl::Duration Wait() {
    const absl::Time before = now;
    const absl::Time next = groups().next_deadline();
    if (next == absl::InfiniteFuture()) return absl::ZeroDuration();
    now = std::max(now, next);
    Timer();
    return now - before;
  }
  void Advance(absl::Duration time) {
    now += time;
    Timer();
  }

  // --- workers ---

  SimWorker& Worker(const std::string& name) {
    return workers[name].name.empty() ? Named(name) : workers[name];
  }
  // Connects and says hello.
  void Join(const std::string& name) {
    SimWorker& worker = Worker(name);
    worker.shut_down = false;
    worker.inbox.clear();
    worker.outbox.clear();
    worker.member = next_member_++;
    ++worker.streams;
    by_member_[worker.member] = name;
    checker().OnHello(worker.member);
    Do([&](GroupSet& set, Commands& out) { set.OnHello(worker.member, worker.Hello(), now, out); });
  }
  bool Attached(const std::string& name) {
    const MemberId member = Worker(name).member;
    return std::any_of(groups().groups().begin(), groups().groups().end(),
                       [&](const auto& group) { return group->Has(member); });
  }
  // The connection breaks; what is under way is lost.
  void Break(const std::string& name) {
    SimWorker& worker = Worker(name);
    const MemberId member = std::exchange(worker.member, 0);
    worker.inbox.clear();
    worker.outbox.clear();
    worker.LeaveEpoch();
    if (member != 0) Do([&](GroupSet& set, Commands& out) { set.OnGone(member, now, out); });
  }
  // The process ends; another of that name may come.
  void Kill(const std::string& name) {
    SimWorker& worker = Worker(name);
    worker.residents.clear();
    worker.ended.clear();
    worker.followed = 0;
    Break(name);
  }
  void Report(const std::string& name, const StepReport& report) {
    const MemberId member = Worker(name).member;
    Tell(name, [this, member, report] {
      Do([&](GroupSet& set, Commands& out) { set.OnReport(member, report, now, out); }, member);
    });
  }
  void Ready(const std::string& name, const EpochReady& ready) {
    const MemberId member = Worker(name).member;
    Tell(name, [this, member, ready] {
      if (ready.error.empty()) checker().OnReady(member, ready.epoch);
      Do([&](GroupSet& set, Commands& out) { set.OnEpochReady(member, ready, now, out); }, member);
    });
  }
  // The router gets the next message of this worker; false when there is none.
  bool Deliver(const std::string& name) {
    SimWorker& worker = Worker(name);
    if (worker.outbox.empty()) return false;
    const std::function<void()> message = std::move(worker.outbox.front());
    worker.outbox.pop_front();
    message();
    return true;
  }
  // Reads one message; false when there is none.
  bool Read(const std::string& name, const std::string& form_error = "") {
    SimWorker& worker = Worker(name);
    if (worker.inbox.empty()) return false;
    auto message = std::move(worker.inbox.front());
    worker.inbox.pop_front();
    if (auto* offer = std::get_if<EpochOffer>(&message)) {
      OnOffer(worker, *offer, form_error);
    } else if (auto* plan = std::get_if<SentPlan>(&message)) {
      if (worker.epoch && worker.epoch->epoch == plan->part.epoch) worker.plans.push_back(std::move(*plan));
    } else if (std::holds_alternative<SendShutdown>(message)) {
      worker.shut_down = true;
    } else {
      worker.member = 0;
      worker.outbox.clear();
      worker.LeaveEpoch();
    }
    return true;
  }
  // All that is there to read.
  void ReadAll() {
    for (bool any = true; std::exchange(any, false);) {
      for (auto& [name, worker] : workers) any |= Read(name);
    }
  }
  // The ranks whose barrier this worker meets, itself included.
  std::vector<SimWorker*> Barrier(const SimWorker& worker) {
    std::vector<SimWorker*> ranks;
    for (auto& [name, other] : workers) {
      if (other.epoch && other.epoch->epoch == worker.epoch->epoch &&
          other.epoch->group == worker.epoch->group && (!worker.epoch->independent || &other == &worker)) {
        ranks.push_back(&other);
      }
    }
    return ranks;
  }
  // A step of the worker's barrier; false when a rank is missing or waits for a plan. Groups decide once,
  // with all reports, as where they come together.
  bool Step(const std::string& name) {
    SimWorker& worker = Worker(name);
    if (read_plans && worker.epoch) {
      for (SimWorker* rank : Barrier(worker)) {
        while (!rank->inbox.empty() && std::holds_alternative<SentPlan>(rank->inbox.front()))
          Read(rank->name);
      }
    }
    if (!worker.CanStep()) return false;
    const std::vector<SimWorker*> ranks = Barrier(worker);
    if (ranks.size() < worker.epoch->world_size) return false;
    if (!std::all_of(ranks.begin(), ranks.end(), [](const SimWorker* rank) { return rank->CanStep(); }))
      return false;
    std::vector<StepReport> reports;
    int64_t pending = 0;
    for (SimWorker* rank : ranks) {
      reports.push_back(rank->Compute());
      if (alter) alter(*rank, reports.back());
      pending += rank->Pending();
    }
    const bool decides = std::exchange(decide, false);
    for (size_t i = 0; i < ranks.size(); ++i) {
      reports[i].group_idle = ranks[i]->parked = pending == 0;
      if (ranks[i]->member != 0) Report(ranks[i]->name, reports[i]);
    }
    decide = decides;
    if (decide) Decide();
    return true;
  }
  // Its barrier fails in its next step: the tokens are good, and it leaves the epoch.
  void FailBarrier(const std::string& name, std::vector<uint32_t> missing = {}) {
    SimWorker& worker = Worker(name);
    StepReport report = worker.Compute();
    report.barrier_error = "a peer is gone";
    report.missing_ranks = std::move(missing);
    worker.LeaveEpoch();
    if (worker.member != 0) Report(name, report);
  }
  // Messages are read and steps made until nothing happens without time going on.
  void Run(int64_t most = 10000) {
    for (bool any = true; std::exchange(any, false) && most > 0;) {
      ReadAll();
      for (auto& [name, worker] : workers) {
        if (!Step(name)) continue;
        any = true;
        --most;
      }
    }
  }
  // Of those that join at once, until their group serves.
  void Serve(const std::vector<std::string>& names) {
    for (const std::string& name : names) Join(name);
    for (int i = 0; i < 100 && !AllServe(); ++i) {
      ReadAll();
      if (!AllServe()) Wait();
    }
  }
  bool AllServe() {
    return std::all_of(groups().groups().begin(), groups().groups().end(),
                       [](const auto& group) { return group->empty() || group->serving(); });
  }
  // The members of an open epoch, by rank.
  std::vector<std::string> Ranks(size_t group_number = 0) {
    std::map<core::WorkerIndex, std::string> ranks;
    for (const MemberView& member : group(group_number).Members()) {
      if (member.rank) ranks[*member.rank] = member.worker_id;
    }
    std::vector<std::string> names;
    for (const auto& [rank, name] : ranks) names.push_back(name);
    return names;
  }

  // For a test that has failed: the state of all workers.
  std::string Describe() {
    std::string text;
    for (const auto& group : groups().groups()) {
      absl::StrAppend(&text, "group ", group->options().name, ": ", group->size(), " members, epoch ",
                      group->epoch(), group->serving() ? " serves" : "", ", next in ",
                      absl::FormatDuration(group->next_deadline() - now), ", gives up in ",
                      absl::FormatDuration(group->give_up_at() - now), "\n");
    }
    absl::StrAppend(&text, cluster().waiting(), " wait, ", cluster().placed(), " are placed\n");
    for (const auto& [name, worker] : workers) {
      absl::StrAppend(&text, name, ": ", worker.member == 0 ? "not connected" : "connected", ", epoch ",
                      worker.epoch ? worker.epoch->epoch : 0, ", step ", worker.step, ", applied ",
                      worker.applied, worker.parked ? ", parked, " : ", ", worker.residents.size(),
                      " requests, ", worker.plans.size(), " plans\n");
    }
    for (size_t i = log.size() - std::min<size_t>(log.size(), 12); i < log.size(); ++i)
      absl::StrAppend(&text, log[i], "\n");
    return text;
  }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  std::map<std::string, SimWorker> workers;
  // Groups decide after every event.
  bool decide = true;
  // A step begins with the plans that have come, read or not.
  bool read_plans = true;
  // Messages to the router wait in SimWorker::outbox until Deliver.
  bool delayed = false;
  // Changes what a rank reports of a step; what it answers to an offer.
  std::function<void(SimWorker&, StepReport&)> alter;
  std::function<void(SimWorker&, EpochReady&)> alter_ready;
  // Steps that were handed out; commands other than about requests and workers, newest last.
  std::vector<std::shared_ptr<const StepSummary>> steps;
  std::vector<std::string> log;
  std::vector<CloseMember> closed;
  std::vector<SendNotice> notices;
  std::vector<core::RequestId> lost;
  // The last part of a plan that each worker was sent, and how many it was sent.
  std::map<std::string, PlanPart> last_part;
  std::map<std::string, int64_t> parts;

 private:
  SimWorker& Named(const std::string& name) {
    workers[name].name = name;
    return workers[name];
  }
  SimWorker* ByMember(MemberId member) {
    const auto it = by_member_.find(member);
    if (it == by_member_.end() || workers[it->second].member != member) return nullptr;
    return &workers[it->second];
  }
  void OnOffer(SimWorker& worker, const EpochOffer& offer, const std::string& error) {
    worker.LeaveEpoch();
    for (const core::RequestId id : offer.cancellations) {
      worker.residents.erase(id);
      worker.ended.erase(id);
    }
    EpochReady ready;
    ready.epoch = offer.epoch;
    ready.error = error;
    ready.communicator_offer = absl::StrCat("at ", worker.name);
    ready.active = worker.Active();
    if (error.empty()) {
      worker.epoch = offer;
      if (offer.announce) {
        const MemberId member = worker.member;
        Announcement announcement = worker.Announce();
        Do([&](GroupSet& set,
               Commands& out) { set.OnAnnouncement(member, std::move(announcement), now, out); },
           member);
        worker.ended.clear();
      }
    }
    if (worker.member != 0) Ready(worker.name, std::move(ready));
  }

  void Tell(const std::string& name, std::function<void()> message) {
    if (delayed) {
      Worker(name).outbox.push_back(std::move(message));
    } else {
      message();
    }
  }
  void Carry(const Commands& commands, std::optional<MemberId> reporter = std::nullopt) {
    checker().Observe(commands, reporter);
    for (const Command& command : commands) std::visit([&](const auto& c) { On(c); }, command);
  }
  template <typename Message>
  void Send(MemberId to, Message message) {
    if (SimWorker* worker = ByMember(to); worker != nullptr) worker->inbox.push_back(std::move(message));
  }
  void On(const SendEpoch& send) { Send(send.to, send.epoch); }
  void On(const SendPlan& send) {
    SentPlan plan{send.plan, {}};
    for (const core::RequestId id : send.plan.placements) {
      const auto it = book().live.find(id);
      if (it == book().live.end()) continue;
      SimpleBook::Record& record = it->second;
      if (const SimWorker* worker = ByMember(send.to); worker != nullptr) {
        if (record.delivered > 0 && record.model_name != worker->model)
          checker().Broken(absl::StrCat("request ", id, " goes on with the model that it began on"));
        record.model_name = worker->model;
      }
      plan.assigned.push_back({id, record.prompt, record.delivered, record.max_new, record.resumable});
    }
    if (const SimWorker* worker = ByMember(send.to); worker != nullptr) {
      last_part[worker->name] = send.plan;
      ++parts[worker->name];
    }
    Send(send.to, std::move(plan));
  }
  void On(const SendNotice& notice) { notices.push_back(notice); }
  void On(const SendShutdown& shutdown) { Send(shutdown.to, shutdown); }
  void On(const CloseMember& close) {
    closed.push_back(close);
    Send(close.to, close);
  }
  void On(const TokensMade& made) { book().OnTokens(made); }
  void On(const RequestFinished& finished) { book().OnFinished(finished.id); }
  void On(const RequestRejected& rejected) { book().OnRejected(rejected); }
  void On(const RequestPreempted& preempted) { book().PlaceAgain(preempted.id); }
  void On(const RequestLost& request) {
    lost.push_back(request.id);
    book().PlaceAgain(request.id);
  }
  void On(const RequestPlaced& placed) { book().OnPlaced(placed.id, placed.model); }
  void On(const EpochOpened&) {}
  void On(const EpochClosed&) {}
  void On(const StepDone& done) { steps.push_back(done.summary); }
  void On(const EnergyReported&) {}
  void On(const LogLine& line) { log.push_back(line.text); }

  GroupSetOptions options_;
  const std::string policy_;
  std::unique_ptr<Router> router_;
  std::vector<std::string> broken_;
  MemberId next_member_ = 1;
  std::map<MemberId, std::string> by_member_;
};

}  // namespace bfio::router

#endif  // BFIO_TESTS_TESTING_GROUP_WORLD_H_
