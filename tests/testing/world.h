// A router's groups, requests and scheduler with workers and clients that follow the protocols, without
// sockets and clocks.
//
// Purpose: whole lifecycles in virtual time. A test decides when a worker reads its next message, steps,
// loses its connection or dies, when the router restarts, and what time it is. Every command of the groups is
// checked (group_checker.h) and carried out as router/app does. Tokens are a function of the client's
// request, their index and the worker's model, so clients notice missing, duplicate, misordered and foreign
// tokens. Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>
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
#include "router/requests/request_lifecycle.h"
#include "tests/testing/client.h"
#include "tests/testing/group_checker.h"
#include "tests/testing/sim_worker.h"

namespace bfio::router {

struct WorldOptions {
  GroupSetOptions groups;
  std::string policy = "least_tokens";
  // Requests wait as long as the test likes.
  RequestOptions requests = {.max_queue_time = absl::ZeroDuration()};
  OverloadOptions overload;
  // If there is one, it outlives the world and gets the events of all routers.
  core::EventObserver* observer = nullptr;
};

class World : private RequestBook {
 public:
  explicit World(WorldOptions options) : options_(std::move(options)) { Start(); }
  ~World() override = default;

  // --- the router ---

  // Starts or restarts the router. Connections to the previous one are lost; clients of resumable requests
  // come back, with what they have received.
  void Start() {
    for (auto& [name, worker] : workers) worker.Disconnect();
    if (next_member_ > 1) ++options_.groups.group.instance;
    checker_.emplace(&broken);
    router_.reset();
    router_ = std::make_unique<Router>(options_, now, static_cast<RequestBook*>(this));
    for (auto& [number, client] : clients) {
      if (!client->open()) continue;
      if (client->request.resumable) {
        Resume(number);
      } else {
        (void)client->End(absl::UnavailableError("the router is gone"), std::nullopt);
      }
    }
  }
  // Options of the next router.
  WorldOptions& options() { return options_; }
  GroupSet& groups() { return router_->groups; }
  Group& group(size_t i = 0) { return *groups().groups().at(i); }
  core::Cluster& cluster() { return router_->cluster; }
  RequestLifecycle& requests() { return router_->requests; }
  const OverloadControl& overload() const { return router_->overload; }
  const RequestTotals& totals() { return requests().totals(); }
  GroupChecker& checker() { return *checker_; }

  // Handles an event of groups and its consequences. `reporter`: the member whose message it is.
  void Do(const std::function<void(GroupSet&, Commands&)>& event,
          std::optional<MemberId> reporter = std::nullopt) {
    requests().SetTime(now);
    Commands out;
    event(groups(), out);
    Carry(out, reporter);
    requests().SetGroups(View());
    if (decide) Decide();
    Check();
  }
  // As in the decision thread: all groups, until none has a plan to make.
  void Decide() {
    for (const core::GroupIndex index : cluster().DecisionOrder()) {
      Group& group = *groups().Find(index);
      for (Commands out; group.Decide(now, out); out.clear()) {
        Carry(out);
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
    requests().OnTimer(now);
    if (requests().next_deadline() <= now) broken.push_back("a request's deadline is past after OnTimer");
    if (decide) Decide();
    Check();
  }
  // Advances the time to the groups' next deadline, or else to the requests'; returns by how much.
  absl::Duration Wait() {
    const absl::Time before = now;
    absl::Time next = groups().next_deadline();
    if (next == absl::InfiniteFuture()) next = requests().next_deadline();
    if (next == absl::InfiniteFuture()) return absl::ZeroDuration();
    now = std::max(now, next);
    Timer();
    return now - before;
  }
  void Advance(absl::Duration time) {
    now += time;
    Timer();
  }
  absl::Status Drain(const std::string& name) {
    absl::Status status;
    Do([&](GroupSet& set, Commands& out) { status = set.Drain(name, now, out); });
    return status;
  }
  absl::Status Undrain(const std::string& name) {
    absl::Status status;
    Do([&](GroupSet& set, Commands& out) { status = set.Undrain(name, out); });
    return status;
  }

  // --- clients ---

  // Requests first .. last arrive, each with its number as its id.
  void Submit(core::RequestId first, core::RequestId last, uint32_t max_new = 20, bool resumable = true,
              uint32_t prompt = 10) {
    for (core::RequestId id = first; id <= last; ++id) {
      Arrive(id, Own(id),
             {.request_id = absl::StrCat(id),
              .prompt_tokens = prompt,
              .max_new_tokens = max_new,
              .resumable = resumable});
    }
    if (decide) Decide();
  }
  // A request or a resume, with this number as its id.
  void Arrive(uint64_t number, Client::Own own, ClientRequest request) {
    const auto client = std::make_shared<Client>(number, request.resume_from.value_or(0), &broken);
    client->request = request;
    client->own = std::move(own);
    clients[number] = client;
    requests().OnArrival({number, std::move(request), client, {}}, now);
  }
  void Cancel(uint64_t number) { requests().OnCancel(clients.at(number)->id(), /*timed_out=*/true, now); }
  Client& client(uint64_t number) { return *clients.at(number); }
  // Number of requests that have all their tokens; that ended otherwise; that have not ended.
  size_t Completed() const {
    return Count([](const Client& client) { return client.finish && client.status->ok(); });
  }
  size_t Failed() const {
    return Count([](const Client& client) { return !client.open() && !client.status->ok(); });
  }
  size_t Open() const {
    return Count([](const Client& client) { return client.open(); });
  }
  // How often a request was placed again after it had lost its place on a worker.
  int64_t PlacedAgain() { return totals().replayed + totals().preempted; }

  // --- workers ---

  SimWorker& Worker(const std::string& name) {
    workers[name].name = name;
    return workers[name];
  }
  // Connects and sends Hello.
  void Join(const std::string& name) {
    SimWorker& worker = Worker(name);
    worker.shut_down = false;
    worker.inbox.clear(), worker.outbox.clear();
    worker.member = next_member_++;
    ++worker.streams;
    by_member_[worker.member] = name;
    HelloFrom(worker.member, worker.Hello());
  }
  void Join(const std::string& name, const std::string& group) {
    Worker(name).group = group;
    Join(name);
  }
  void HelloFrom(MemberId member, const WorkerHello& hello) {
    checker().OnHello(member);
    Do([&](GroupSet& set, Commands& out) { set.OnHello(member, hello, now, out); });
  }
  // The name of its group; empty: it has none.
  std::string GroupOf(const std::string& name) {
    for (const auto& group : groups().groups()) {
      if (Worker(name).member != 0 && group->Has(Worker(name).member)) return group->options().name;
    }
    return "";
  }
  bool Attached(const std::string& name) { return !GroupOf(name).empty(); }
  // The connection breaks; messages under way are lost.
  void Break(const std::string& name) {
    const MemberId member = Worker(name).member;
    Worker(name).Disconnect();
    if (member != 0) Do([&](GroupSet& set, Commands& out) { set.OnGone(member, now, out); });
  }
  // The process ends; another one with the same name may join later.
  void Kill(const std::string& name) {
    SimWorker& worker = Worker(name);
    worker.residents.clear(), worker.ended.clear();
    worker.followed = 0;
    Break(name);
  }
  void Leave(const std::string& name, const std::string& reason = "SIGTERM") {
    Do([&](GroupSet& set, Commands& out) { set.OnLeave(Worker(name).member, reason, now, out); });
  }
  void Report(const std::string& name, const StepReport& report) {
    const MemberId member = Worker(name).member;
    Tell(name, [this, member, report] {
      Do([&](GroupSet& set, Commands& out) { set.OnReport(member, report, now, out); }, member);
    });
  }
  // Its barrier's other ranks take no step.
  void StepAlone(const std::string& name) { Report(name, Worker(name).Compute()); }
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
      worker.Disconnect();
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
    if (ranks.size() < worker.epoch->world_size ||
        !std::all_of(ranks.begin(), ranks.end(), [](const SimWorker* rank) { return rank->CanStep(); })) {
      return false;
    }
    std::vector<StepReport> reports;
    bool idle = true;
    for (SimWorker* rank : ranks) {
      reports.push_back(rank->Compute());
      if (alter) alter(*rank, reports.back());
      idle = idle && rank->Idle();
    }
    const bool decides = std::exchange(decide, false);
    for (size_t i = 0; i < ranks.size(); ++i) {
      reports[i].group_idle = ranks[i]->parked = idle;
      if (ranks[i]->member != 0) Report(ranks[i]->name, reports[i]);
    }
    decide = decides;
    if (decide) Decide();
    return true;
  }
  void Steps(int count, const std::vector<std::string>& names = {"a"}) {
    for (int i = 0; i < count; ++i) {
      for (const std::string& name : names) Step(name);
    }
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
  // Reads messages and takes steps until nothing more happens at the current time. Returns Completed().
  size_t RunAll(int64_t most = 10000) {
    for (bool any = true; std::exchange(any, false) && most > 0;) {
      ReadAll();
      for (auto& [name, worker] : workers) {
        if (!Step(name)) continue;
        any = true;
        --most;
      }
    }
    return Completed();
  }
  // Advances the time, deadline by deadline, while the condition holds. False: it still does.
  template <typename Condition>
  bool WaitWhile(const Condition& condition) {
    for (int i = 0; i < 100; ++i) {
      if (!condition()) return true;
      Wait();
    }
    return false;
  }
  // Reads messages and advances the time until all groups with members serve. False: they do not.
  bool Form() {
    return WaitWhile([&] {
      ReadAll();
      return !AllServe();
    });
  }
  // These workers join at the same time; waits until their groups serve.
  bool Serve(const std::vector<std::string>& names) {
    for (const std::string& name : names) Join(name);
    return Form();
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
  // The status with which the router closed this connection.
  absl::Status ClosedWith(MemberId member) const {
    for (const CloseMember& close : closed) {
      if (close.to == member) return close.status;
    }
    return absl::UnknownError("it was not closed");
  }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  std::map<std::string, SimWorker> workers;
  // By the number that the client gave its request.
  std::map<uint64_t, std::shared_ptr<Client>> clients;
  // Promises that the router has not kept.
  std::vector<std::string> broken;
  // Whether groups decide after every event; whether a step begins with all plans that were sent, also those
  // not yet read; whether messages to the router wait in SimWorker::outbox until Deliver.
  bool decide = true, read_plans = true, delayed = false;
  // Changes a rank's report of a step; changes its response to an offer.
  std::function<void(SimWorker&, StepReport&)> alter;
  std::function<void(SimWorker&, EpochReady&)> alter_ready;
  // What the groups have reported, newest last.
  std::vector<std::shared_ptr<const StepSummary>> steps;
  std::vector<std::string> log;
  std::vector<CloseMember> closed;
  std::vector<SendNotice> notices;
  std::vector<EnergyReported> energy;
  std::vector<core::RequestId> lost;
  // Requests that were on a worker when it died.
  std::vector<core::RequestId> died_with;
  // The last part of a plan that each worker was sent, and how many it was sent.
  std::map<std::string, PlanPart> last_part;
  std::map<std::string, int64_t> parts;

  // Of all groups together.
  GroupCapacity Capacity() {
    GroupCapacity all;
    for (const GroupCapacity& one : groups().capacities()) {
      all.kv_tokens += one.kv_tokens;
      for (const int64_t tokens : one.sequence_tokens) all.sequence_tokens.push_back(tokens);
      all.passes |= one.passes;
    }
    return all;
  }

 private:
  // What router/app's decision thread owns.
  struct Router {
    Router(const WorldOptions& options, absl::Time now, RequestBook* book)
        : overload(options.overload),
          cluster({.max_waiting = options.overload.max_waiting, .plan_mode = options.groups.group.plan_mode},
                  {options.policy, {}}, {}, nullptr, options.observer),
          requests(options.requests, &cluster, &tenants, &overload, now),
          groups(options.groups, &cluster, book) {}
    Tenants tenants{{}};
    OverloadControl overload;
    core::Cluster cluster;
    RequestLifecycle requests;
    GroupSet groups;
  };

  // --- RequestBook: the requests, observed ---

  std::vector<core::RequestSpec> Recover(const Holder& holder, std::vector<HeldRequest> held) override {
    auto recovered = requests().Recover(holder, std::move(held));
    for (const auto& group : groups().groups()) {
      const std::optional<MemberId> member = group->FindWorker(holder.worker_id);
      if (!member) continue;
      for (const core::RequestSpec& spec : recovered) checker().OnRecovered(spec.id, *member);
    }
    return recovered;
  }
  std::optional<uint32_t> ReceivedSincePlaced(core::RequestId id) const override {
    return router_->requests.ReceivedSincePlaced(id);
  }
  void OnWorkerDied(core::GroupIndex group, core::WorkerIndex worker) override {
    for (const auto& [number, client] : clients) {
      if (client->open() && cluster().LocationOf(number) == core::Cluster::Location{group, worker})
        died_with.push_back(number);
    }
    requests().OnWorkerDied(group, worker);
  }
  void CountTokens(uint32_t generated, uint32_t received) override {
    requests().CountTokens(generated, received);
  }

  // --- clients ---

  size_t Count(const std::function<bool(const Client&)>& which) const {
    return static_cast<size_t>(std::count_if(clients.begin(), clients.end(),
                                             [&](const auto& client) { return which(*client.second); }));
  }
  // All tokens of a request are its own, and of one model.
  static Client::Own Own(uint64_t number) {
    return [number, tag = std::optional<uint32_t>()](uint32_t index, uint32_t token) mutable {
      if (!tag) tag = token >> 24;
      return token == (*tag << 24 | TokenOf(number, index));
    };
  }
  // The client comes back to a new router with what it has received, and a proof of it.
  void Resume(uint64_t number) {
    const std::shared_ptr<Client> before = clients.at(number);
    const auto from = static_cast<uint32_t>(before->tokens.size());
    const auto client = std::make_shared<Client>(next_sink_++, from, &broken);
    client->request = before->request;
    client->own = before->own;
    client->tokens = before->tokens;
    client->model = before->model;
    clients[number] = client;
    ClientRequest resume = client->request;
    resume.resume_from = from;
    resume.received = client->tokens;
    resume.resume_proven = true;
    resume.model = client->model;
    if (!resume.model.empty()) groups().ExpectModel(resume.model, now);
    requests().SetGroups(View());
    requests().OnArrival({client->id(), std::move(resume), client, {}}, now);
  }

  // --- the router ---

  GroupsView View() {
    GroupsView view = {.capacities = groups().capacities(), .shortest_step = groups().shortest_step()};
    view.complete = groups().complete();
    view.expects_announcements = groups().ExpectsAnnouncements();
    view.models = groups().models();
    for (const auto& group : groups().groups()) {
      const core::GroupIndex index = group->options().index;
      view.ranks.push_back({.group = index,
                            .ranks = group->serving() ? cluster().group(index)->num_workers() : 0,
                            .returns = !group->serving() && group->returns()});
    }
    return view;
  }
  void Check() {
    requests().flushes().clear();
    checker().Compare(cluster(), groups(), requests());
    for (const auto& [number, client] : clients) {
      if (client->open() && requests().ReceivedSincePlaced(client->id()) && !cluster().Knows(client->id()))
        broken.push_back(absl::StrCat("request ", number, " is live, and the scheduler does not know it"));
    }
  }
  SimWorker* ByMember(MemberId member) {
    const auto it = by_member_.find(member);
    if (it == by_member_.end() || workers[it->second].member != member) return nullptr;
    return &workers[it->second];
  }
  void OnOffer(SimWorker& worker, const EpochOffer& offer, const std::string& error) {
    worker.LeaveEpoch();
    for (const core::RequestId id : offer.cancellations) {
      worker.residents.erase(id), worker.ended.erase(id);
    }
    EpochReady ready = {.epoch = offer.epoch, .error = error};
    ready.communicator_offer = absl::StrCat("at ", worker.name);
    ready.active = worker.Active();
    if (alter_ready) alter_ready(worker, ready);
    if (error.empty()) {
      worker.epoch = offer;
      if (offer.announce) {
        const MemberId member = worker.member;
        const Announcement announcement = worker.Announce();
        Do([&](GroupSet& set, Commands& out) { set.OnAnnouncement(member, announcement, now, out); }, member);
        worker.ended.clear();
      }
    }
    if (worker.member != 0) Ready(worker.name, ready);
  }
  void Tell(const std::string& name, std::function<void()> message) {
    if (!delayed) return message();
    Worker(name).outbox.push_back(std::move(message));
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
      const auto rank = static_cast<uint32_t>(placed.worker);
      const auto made = requests().OnPlaced(placed.id, rank, placed.wait_steps, now, send.plan.model);
      if (!made) continue;
      if (!made->history->empty() && made->history->size() != made->first_index)
        broken.push_back("a placement continues where the last one ended");
      uint64_t number = 0;
      (void)absl::SimpleAtoi(made->request->request_id, &number);
      plan.assigned.push_back({placed.id, number, made->request->prompt_tokens, made->first_index,
                               made->request->max_new_tokens, made->request->resumable});
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
  void On(const GeneratedTokens& made) {
    requests().OnTokens(made.id, made.tokens, made.logprobs, now, made.messages);
  }
  void On(const RequestFinished& c) { requests().OnFinished(c.id, c.reason, now, c.generated); }
  void On(const RequestRejected& c) { requests().OnRejected(c.id, c.status, now); }
  void On(const RequestPreempted& preempted) { requests().OnPreempted(preempted.id, now); }
  void On(const RequestLost& request) {
    lost.push_back(request.id);
    requests().OnLost(request.id, now);
  }
  void On(const EpochOpened&) {
    requests().SetGroups(View());
    requests().OnEpochOpened(now);
  }
  void On(const EpochClosed&) { requests().SetGroups(View()); }
  void On(const StepDone& done) { steps.push_back(done.summary); }
  void On(const EnergyReported& reading) { energy.push_back(reading); }
  void On(const LogLine& line) { log.push_back(line.text); }

  WorldOptions options_;
  std::optional<GroupChecker> checker_;
  std::unique_ptr<Router> router_;
  MemberId next_member_ = 1;
  // Above all numbers of requests.
  uint64_t next_sink_ = 10'000'000;
  std::map<MemberId, std::string> by_member_;
};

}  // namespace bfio::router
