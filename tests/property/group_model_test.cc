// Groups and requests under random lifecycles of workers, routers and clients, some workers with other models
// and barriers, compared with a simple reference after every event (tests/testing/group_checker.h). Clients
// check every token. At the end there are no more faults: then every request ends, with all its tokens or for
// a stated reason.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "common/base/spdlog.h"
#include "gtest/gtest.h"
#include "tests/testing/world.h"

namespace bfio::router {
namespace {

constexpr int kSeeds = 50;
constexpr int kEventsPerSeed = 4000;

WorldOptions RandomOptions(Rng& rng) {
  WorldOptions world;
  GroupSetOptions& options = world.groups;
  options.groups = static_cast<int32_t>(1 + rng.Below(2));
  options.group.workers = static_cast<int32_t>(1 + rng.Below(3));
  options.group.kind = rng.Below(3) == 0 ? core::GroupKind::kIndependent : core::GroupKind::kBarrier;
  options.group.plan_mode = rng.Below(3) == 0 ? core::PlanMode::kLockstep : core::PlanMode::kPipelined;
  options.group.step_timeout = absl::Seconds(2);
  options.group.form_timeout = absl::Seconds(2);
  options.group.restart_settle = absl::Seconds(1);
  world.requests.restart_settle = absl::Seconds(1);
  if (rng.Below(2) == 0) world.policy = "fcfs";
  return world;
}

class RandomLife {
 public:
  explicit RandomLife(uint64_t seed) : rng_(seed), options_(RandomOptions(rng_)), world_(options_) {
    world_.read_plans = false;
    world_.delayed = true;
    const int32_t workers =
        options_.groups.groups * options_.groups.group.workers + static_cast<int32_t>(rng_.Below(2));
    for (int32_t i = 0; i < workers; ++i) {
      names_.push_back(absl::StrCat("w", i));
      // Some join a group of their own.
      if (rng_.Below(6) == 0) world_.Worker(names_.back()).group = "other";
      ChooseModel(names_.back());
    }
    world_.alter_ready = [this](SimWorker&, EpochReady& ready) {
      if (!faults_ || !Chance(50) || ready.active.empty()) return;
      ready.active.front().generated_tokens += 1;
    };
    world_.alter = [this](SimWorker& worker, StepReport& report) { Alter(worker, report); };
  }

  void Live(int events) {
    for (int i = 0; i < events; ++i) Event();
  }

  // No more faults: all workers return, and all live requests end.
  void Recover() {
    faults_ = false;
    // Every group gets as many workers as it waits for.
    for (const char* group : {"0", "1", "other"}) {
      for (int32_t i = 0; i < options_.groups.group.workers; ++i) {
        names_.push_back(absl::StrCat("late ", group, i));
        world_.Worker(names_.back()).group = group;
        if (several_models_) world_.Worker(names_.back()).model = "aa";
      }
    }
    for (int round = 0; round < 20000 && world_.Open() > 0; ++round) {
      bool any = false;
      // One decision for reports that arrive together.
      world_.decide = false;
      for (const std::string& name : names_) {
        while (world_.Deliver(name)) any = true;
        while (world_.Read(name)) any = true;
      }
      world_.decide = true;
      world_.Decide();
      for (const std::string& name : names_) any |= StepOrFail(name);
      if (any) continue;
      world_.Wait();
      world_.Advance(absl::Milliseconds(50));
      // Workers that were refused join again.
      for (const std::string& name : names_) {
        if (world_.Worker(name).member == 0) Join(name);
      }
    }
  }

  World& world() { return world_; }
  int64_t restarts() const { return restarts_; }
  bool several_models() const { return several_models_; }
  // Of all routers so far.
  int64_t recovered() { return recovered_ + world_.totals().recovered; }
  int64_t placed_again() { return placed_again_ + world_.PlacedAgain(); }

 private:
  // Most workers have the same model; in half of the runs all have.
  void ChooseModel(const std::string& name) {
    if (!several_models_) return;
    SimWorker& worker = world_.Worker(name);
    worker.model = rng_.Below(3) == 0 ? "bb" : "aa";
    worker.barrier = rng_.Below(12) == 0 ? "nccl" : "star";
  }
  bool Chance(uint64_t one_in) { return rng_.Below(one_in) == 0; }
  const std::string& Any() { return names_[rng_.Below(names_.size())]; }
  bool Asleep(const std::string& name) { return faults_ && world_.now < asleep_until_[name]; }

  void Join(const std::string& name) {
    SimWorker& worker = world_.Worker(name);
    // The process that was told to end has ended.
    if (worker.shut_down) world_.Kill(name);
    world_.Join(name);
  }

  void Event() {
    const std::string& name = Any();
    SimWorker& worker = world_.Worker(name);
    switch (rng_.Below(16)) {
      case 0:
        if (world_.Open() < 60) {
          const auto prompt = static_cast<uint32_t>(1 + rng_.Below(50));
          const auto max_new = static_cast<uint32_t>(1 + rng_.Below(30));
          ++last_id_;
          world_.Submit(last_id_, last_id_, max_new, !Chance(4), prompt);
        }
        break;
      case 1: world_.Advance(absl::Milliseconds(static_cast<int64_t>(rng_.Below(20)))); break;
      case 2:
        if (Chance(4)) world_.Wait();
        break;
      case 3:
        if (worker.member == 0 && !Asleep(name)) Join(name);
        break;
      case 4: Fault(name); break;
      case 5:
      case 6:
      case 7:
      case 8:
        // Decides at every event, or later.
        world_.decide = !Chance(4);
        world_.Deliver(name);
        world_.decide = true;
        break;
      case 9:
      case 10:
      case 11:
        if (!Asleep(name)) world_.Read(name, Chance(60) ? "no barrier" : "");
        break;
      default: StepOrFail(name);
    }
  }

  bool StepOrFail(const std::string& name) {
    SimWorker& worker = world_.Worker(name);
    if (Asleep(name) || !worker.CanStep()) return false;
    const std::vector<SimWorker*> ranks = world_.Barrier(worker);
    std::vector<uint32_t> missing;
    for (uint32_t rank = 0; rank < worker.epoch->world_size; ++rank) {
      const auto there = std::find_if(ranks.begin(), ranks.end(),
                                      [&](const SimWorker* other) { return other->epoch->rank == rank; });
      if (there == ranks.end() || Asleep((*there)->name)) missing.push_back(rank);
    }
    if (missing.empty()) return world_.Step(name);
    // The worker notices with a delay that a peer has left or hangs.
    if (faults_ && !Chance(10)) return false;
    world_.FailBarrier(name, Chance(2) ? missing : std::vector<uint32_t>());
    return true;
  }

  void Fault(const std::string& name) {
    SimWorker& worker = world_.Worker(name);
    switch (rng_.Below(60)) {
      case 0: return world_.Break(name);
      case 1:
        world_.Kill(name);
        // The next process of that name may have another model, and names the group it was started with.
        if (Chance(2)) return;
        worker.group = Chance(6) ? "other" : "";
        return ChooseModel(name);
      case 2:
        asleep_until_[name] = world_.now + absl::Milliseconds(static_cast<int64_t>(rng_.Below(4000)));
        return;
      case 3:
      case 4:
        for (const auto& [number, client] : world_.clients) {
          if (client->open()) return world_.Cancel(number);
        }
        return;
      case 5: (void)world_.Drain(name); return;
      case 6:
        if (worker.member != 0) world_.Leave(name);
        return;
      case 7:
        // A request refused for lack of capacity is placed again; any other error ends it.
        for (const auto& [number, client] : world_.clients) {
          if (client->open() && Chance(20)) {
            worker.refuses[number] =
                Chance(3) ? absl::InvalidArgumentError("no") : absl::ResourceExhaustedError("no room");
          }
        }
        return;
      case 8:
        if (worker.member != 0) world_.HelloFrom(worker.member, worker.Hello());
        return;
      case 9:
        if (worker.member != 0)
          world_.Ready(name, {.epoch = rng_.Below(20), .error = "an answer to nothing"});
        return;
      case 10:
        if (Chance(3)) Restart();
        return;
      default: return;
    }
  }

  void Restart() {
    recovered_ = recovered();
    placed_again_ = placed_again();
    ++restarts_;
    world_.Start();
    // Without a router the workers continue to step, and some of their requests end.
    for (const std::string& name : names_) {
      SimWorker& worker = world_.Worker(name);
      for (auto it = worker.residents.begin(); it != worker.residents.end();) {
        auto& [id, resident] = *it;
        for (uint64_t more = rng_.Below(4); more > 0 && !resident.ended(); --more) ++resident.made;
        if (resident.ended()) {
          if (resident.resumable) worker.ended.insert(*it);
          it = worker.residents.erase(it);
        } else {
          ++it;
        }
      }
    }
  }

  // A report with errors, or an engine that preempts a request for lack of KV memory.
  void Alter(SimWorker& worker, StepReport& report) {
    if (!faults_) return;
    if (Chance(30) && !worker.residents.empty() && report.rejected.empty()) {
      const core::RequestId id = std::prev(worker.residents.end())->first;
      const auto tokens = std::find_if(report.tokens.begin(), report.tokens.end(),
                                       [&](const RequestTokens& made) { return made.id == id; });
      report.token_ids.erase(report.token_ids.begin() + (tokens - report.tokens.begin()));
      report.tokens.erase(tokens);
      report.preempted.push_back(id);
      worker.residents.erase(id);
      --report.active_requests;
    }
    if (Chance(100)) {
      // Tokens for a request of another worker, or for one that does not exist.
      core::RequestId id = 1 + rng_.Below(last_id_ + 5);
      // An id that will never exist: the next ids may be placed here before the report is read.
      if (id > last_id_) id += 1'000'000;
      const bool own = std::any_of(report.tokens.begin(), report.tokens.end(),
                                   [&](const RequestTokens& made) { return made.id == id; });
      const auto holder = world_.checker().HolderOf(id);
      const bool waits = !holder && world_.cluster().Knows(id);
      if (!own && !waits && holder != worker.member) {
        report.tokens.push_back({id, 1});
        report.token_ids.push_back(1);
        report.finished.push_back({id, FinishReason::kStop});
      }
    }
    if (Chance(400)) report.step += 1 + static_cast<int64_t>(rng_.Below(3));
    if (Chance(400)) report.applied_plan += 100;
    if (Chance(100)) report.load_tokens += 7;
    if (Chance(30)) report.energy = EnergyReading{"gpu", 1, 2, 3};
    if (Chance(20)) {
      StepCostEstimate cost;
      cost.c = {0.005, 1e-6};
      const double tl = 1e-3 * static_cast<double>(1 + rng_.Below(4));
      cost.tl = {tl, tl * 1e-3};
      report.cost = cost;
    }
  }

  Rng rng_;
  const WorldOptions options_;
  const bool several_models_ = rng_.Below(2) == 0;
  World world_;
  std::vector<std::string> names_;
  std::map<std::string, absl::Time> asleep_until_;
  bool faults_ = true;
  core::RequestId last_id_ = 0;
  int64_t restarts_ = 0, recovered_ = 0, placed_again_ = 0;
};

TEST(GroupModel, RandomLifecyclesKeepTheInvariantsAndEndEveryRequest) {
  int64_t completed = 0, restarts = 0, recovered = 0, placed_again = 0;
  int64_t beside = 0, stranded = 0, suspects = 0, lives_of_several = 0;
  spdlog::set_level(spdlog::level::off);
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomLife life(seed);
    World& world = life.world();
    life.Live(kEventsPerSeed);
    life.Recover();
    ASSERT_TRUE(world.broken.empty()) << world.broken.size() << ": " << world.broken.front();
    for (const auto& [number, client] : world.clients) {
      ASSERT_FALSE(client->open()) << "request " << number << " does not end";
      const absl::Status& status = *client->status;
      if (status.ok()) {
        ++completed;
        ASSERT_EQ(client->tokens.size(), client->request.max_new_tokens) << number;
      } else if (absl::IsFailedPrecondition(status)) {
        ++stranded;
      } else if (absl::IsInternal(status)) {
        ++suspects;
      } else {
        // Cancelled, refused by its worker, or not resumable when its router went.
        const bool lost = absl::IsUnavailable(status) && !client->request.resumable;
        ASSERT_TRUE(lost || absl::IsCancelled(status) || absl::IsInvalidArgument(status))
            << number << ": " << status;
      }
    }
    restarts += life.restarts();
    recovered += life.recovered();
    placed_again += life.placed_again();
    lives_of_several += life.several_models() ? 1 : 0;
    beside += static_cast<int64_t>(world.notices.size());
  }
  // The intended events have occurred.
  EXPECT_GT(completed, 1000);
  EXPECT_GT(restarts, 5);
  EXPECT_GT(recovered, 5);
  EXPECT_GT(placed_again, 100);
  EXPECT_GT(lives_of_several, 5);
  EXPECT_GT(beside, 50);
  EXPECT_GT(stranded, 5);
  EXPECT_GT(suspects, 5);
}

}  // namespace
}  // namespace bfio::router
