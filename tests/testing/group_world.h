// Groups with a real scheduler, a simple request table and workers that follow the protocol, without sockets
// and clocks.
//
// Purpose: whole lifecycles in virtual time. A test decides when a worker reads its next message, steps,
// loses its connection or dies; every command is checked (group_checker.h) and carried out. Tokens are a
// function of request and index, so that missing, duplicate or misordered tokens are detected. Threads: one.
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
#include "tests/testing/sim_worker.h"
#include "tests/testing/simple_book.h"

namespace bfio::router {

class GroupWorld {
 public:
  struct Router {
    Router(const GroupSetOptions& options, const core::SchedulerOptions& scheduler, const std::string& policy,
           core::EventObserver* observer)
        : cluster(scheduler, {policy, {}}, {}, nullptr, observer),
          book(&cluster, &checker),
          groups(options, &cluster, &book) {}
    GroupChecker checker;
    core::Cluster cluster;
    SimpleBook book;
    GroupSet groups;
  };

  // `observer`, if there is one, outlives it and gets the events of all routers.
  explicit GroupWorld(GroupSetOptions options, const std::string& policy = "least_tokens",
                      core::EventObserver* observer = nullptr)
      : options_(std::move(options)), policy_(policy), observer_(observer) {
    Start();
  }

  // --- the router ---

  // Starts or restarts the router; connections to the previous one are lost.
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
    router_ = std::make_unique<Router>(options_, scheduler, policy_, observer_);
    router_->book.on_recovered = [this](core::RequestId id, absl::string_view name) {
      const SimWorker& worker = workers.at(std::string(name));
      checker().OnRecovered(id, worker.member);
      book().live.at(id).model_name = worker.model;
    };
  }
  // Options of the next router.
  void SetOptions(const GroupSetOptions& options) { options_ = options; }
  GroupSet& groups() { return router_->groups; }
  Group& group(size_t i = 0) { return *router_->groups.groups().at(i); }
  core::Cluster& cluster() { return router_->cluster; }
  SimpleBook& book() { return router_->book; }
  GroupChecker& checker() { return router_->checker; }
  // Violations of all routers so far.
  std::vector<std::string> broken() const {
    std::vector<std::string> all = broken_;
    all.insert(all.end(), router_->checker.broken().begin(), router_->checker.broken().end());
    return all;
  }

  // Handles an event and its consequences. `reporter`: the member whose message it is.
  void Do(const std::function<void(GroupSet&, Commands&)>& event,
          std::optional<MemberId> reporter = std::nullopt) {
    Commands out;
    event(groups(), out);
    Carry(out, reporter);
    book().EndStranded(groups().models());
    if (decide) Decide();
    checker().Compare(cluster(), groups());
    for (const auto& [id, record] : book().live) {
      if (!cluster().Knows(id))
        checker().Broken(absl::StrCat("request ", id, " is live, and the scheduler does not know it"));
    }
  }
  // As in the decision thread: all groups, until none has a plan to make.
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
    Commands out;
    groups().Settle(now, out);
    Carry(out);
  }
  void Timer() {
    Do([&](GroupSet& set, Commands& out) { set.OnTimer(now, out); });
    checker().CompareTime(groups(), now);
  }
  // Advances the time to the next deadline; returns by how much.
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
  // Connects and sends Hello.
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
  // The connection breaks; messages under way are lost.
  void Break(const std::string& name) {
    SimWorker& worker = Worker(name);
    const MemberId member = std::exchange(worker.member, 0);
    worker.inbox.clear();
    worker.outbox.clear();
    worker.LeaveEpoch();
    if (member != 0) Do([&](GroupSet& set, Commands& out) { set.OnGone(member, now, out); });
  }
  // The process ends; another one with the same name may join later.
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
  // The router receives the next message of this worker; false when there is none.
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
  // Reads all messages of all workers.
  void ReadAll() {
    for (bool any = true; std::exchange(any, false);) {
      for (auto& [name, worker] : workers) any |= Read(name);
    }
  }
  // The ranks that share this worker's barrier, itself included.
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
  // with the reports of all ranks, as if these had arrived together.
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
  // The worker's barrier fails in its next step: the tokens of the step are valid, and it leaves the epoch.
  void FailBarrier(const std::string& name, std::vector<uint32_t> missing = {}) {
    SimWorker& worker = Worker(name);
    StepReport report = worker.Compute();
    report.barrier_error = "a peer is gone";
    report.missing_ranks = std::move(missing);
    worker.LeaveEpoch();
    if (worker.member != 0) Report(name, report);
  }
  // Reads messages and takes steps until nothing more happens at the current time.
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
  // These workers join at the same time; waits until their group serves.
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

  // The state of all workers, for the output of a failed test.
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
  // Whether groups decide after every event.
  bool decide = true;
  // Whether a step begins with all plans that were sent, also those not yet read.
  bool read_plans = true;
  // Whether messages to the router wait in SimWorker::outbox until Deliver.
  bool delayed = false;
  // Changes a rank's report of a step; changes its response to an offer.
  std::function<void(SimWorker&, StepReport&)> alter;
  std::function<void(SimWorker&, EpochReady&)> alter_ready;
  // Steps reported by the groups; commands that do not concern requests and workers, newest last.
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
    if (alter_ready) alter_ready(worker, ready);
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
    for (const core::Placement& placed : send.plan.placements) {
      const core::RequestId id = placed.id;
      book().OnPlaced(id, send.plan.model);
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
  void On(const GeneratedTokens& made) { book().OnTokens(made); }
  void On(const RequestFinished& finished) { book().OnFinished(finished.id); }
  void On(const RequestRejected& rejected) { book().OnRejected(rejected); }
  void On(const RequestPreempted& preempted) { book().PlaceAgain(preempted.id); }
  void On(const RequestLost& request) {
    lost.push_back(request.id);
    book().PlaceAgain(request.id);
  }
  void On(const EpochOpened&) {}
  void On(const EpochClosed&) {}
  void On(const StepDone& done) { steps.push_back(done.summary); }
  void On(const EnergyReported&) {}
  void On(const LogLine& line) { log.push_back(line.text); }

  GroupSetOptions options_;
  const std::string policy_;
  core::EventObserver* const observer_;
  std::unique_ptr<Router> router_;
  std::vector<std::string> broken_;
  MemberId next_member_ = 1;
  std::map<MemberId, std::string> by_member_;
};

}  // namespace bfio::router

#endif  // BFIO_TESTS_TESTING_GROUP_WORLD_H_
