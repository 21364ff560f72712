#include "tools/sim/network/network_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/core/agents/senior_step.h"
#include "tools/sim/network/engine.h"
#include "tools/sim/network/network_check.h"

namespace bfio::sim {

// A request of several calls, from its arrival to the end of the last.
struct Agent {
  const AgentType* type = nullptr;
  double arrived = 0;
  std::vector<Call> calls;
  // By call: number of calls that must still end before it.
  std::vector<int32_t> waits_for;
  size_t calls_left = 0;
  // Tokens decoded on its longest path.
  int64_t path_tokens = 0;
  // Its index among the present agents.
  size_t place = 0;
};

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kEventsBetweenQuestions = 4096;

// For each call of a type or agent, the largest total weight of a path of calls after it.
template <typename Weight>
std::vector<int64_t> LongestAfter(const AgentType& type, Weight weight) {
  std::vector<int64_t> after(type.calls.size(), 0);
  for (size_t i = type.calls.size(); i-- > 0;) {
    for (const int32_t before : type.calls[i].after)
      after[before] = std::max(after[before], weight(i) + after[i]);
  }
  return after;
}

class Simulation {
 public:
  Simulation(const Network& network, const NetworkOptions& options, const worker::BatchScheduler& scheduler)
      : network_(network),
        options_(options),
        arrivals_(Rng(options.seed).Fork(1)),
        lengths_(Rng(options.seed).Fork(2)),
        routes_(Rng(options.seed).Fork(3)),
        engines_(static_cast<size_t>(network.engines),
                 Engine(scheduler, network.token_budget, options.slots, options.watch)),
        ends_(engines_.size(), kNever),
        step_(network.BatchTime(network.token_budget)) {
    for (const AgentType& type : network.types) next_.push_back(NextArrival(type, 0));
  }

  absl::StatusOr<NetworkRun> Run() {
    for (int64_t events = 0;; ++events) {
      if (events % kEventsBetweenQuestions == 0 && options_.go_on && !options_.go_on()) break;
      double now = kNever;
      for (const double end : ends_) now = std::min(now, end);
      for (const double arrival : next_) now = std::min(now, Effective(arrival));
      Sample(std::min(now, options_.horizon));
      if (now >= options_.horizon) break;
      FinishBatches(now);
      Arrivals(now);
      const absl::Status started = StartBatches(now);
      if (!started.ok()) return started;
    }
    for (const Engine& engine : engines_) {
      run_.short_batches += engine.short_batches();
      run_.tokens_left += engine.CountTokensLeft();
    }
    run_.agents_left = static_cast<int64_t>(agents_.size());
    return std::move(run_);
  }

 private:
  double NextArrival(const AgentType& type, double after) {
    if (type.rate <= 0) return kNever;
    return after + (type.evenly ? 1 : arrivals_.Exponential()) / type.rate;
  }
  // The time at which an arrival takes effect.
  double Effective(double arrival) const { return network_.slotted() ? std::ceil(arrival) : arrival; }

  void Sample(double until) {
    int64_t tokens = 0;
    for (const Engine& engine : engines_) tokens += engine.tokens_left();
    run_.peak_tokens = std::max(run_.peak_tokens, tokens);
    while (static_cast<double>(run_.tokens.size()) * options_.sample_every < until) {
      run_.tokens.push_back(tokens);
      run_.agents.push_back(static_cast<int64_t>(agents_.size()));
    }
  }

  void FinishBatches(double now) {
    ended_.clear();
    for (size_t e = 0; e < engines_.size(); ++e) {
      if (ends_[e] > now) continue;
      ends_[e] = kNever;
      run_.tokens_computed += engines_[e].batch_tokens();
      engines_[e].Finish(ended_);
    }
    for (const Call* call : ended_) OnEnded(*call, now);
  }

  void OnEnded(const Call& call, double now) {
    Agent& agent = *call.agent;
    for (size_t i = static_cast<size_t>(call.index) + 1; i < agent.calls.size(); ++i) {
      const std::vector<int32_t>& after = agent.type->calls[i].after;
      if (std::find(after.begin(), after.end(), call.index) == after.end()) continue;
      if (--agent.waits_for[i] == 0) Join(agent, i, now);
    }
    if (--agent.calls_left > 0) return;
    ++run_.ended;
    if (agent.arrived >= options_.horizon / 2) {
      const auto type = static_cast<int32_t>(agent.type - network_.types.data());
      run_.finished.push_back({type, now - agent.arrived, agent.path_tokens});
    }
    std::swap(agents_[agent.place], agents_.back());
    agents_[agent.place]->place = agent.place;
    agents_.pop_back();
  }

  void Arrivals(double now) {
    for (size_t t = 0; t < next_.size(); ++t) {
      for (; Effective(next_[t]) <= now; next_[t] = NextArrival(network_.types[t], next_[t]))
        Arrive(network_.types[t], next_[t]);
    }
  }

  void Arrive(const AgentType& type, double when) {
    ++run_.arrived;
    Agent& agent = *agents_.emplace_back(std::make_unique<Agent>());
    agent.type = &type;
    agent.arrived = when;
    agent.place = agents_.size() - 1;
    agent.calls_left = type.calls.size();
    agent.calls.resize(type.calls.size());
    for (size_t i = 0; i < type.calls.size(); ++i) {
      Call& call = agent.calls[i];
      call.agent = &agent;
      call.index = static_cast<int32_t>(i);
      call.prefill_tokens = type.calls[i].prefill.Draw(lengths_);
      call.decode_tokens = type.calls[i].decode.Draw(lengths_);
      agent.waits_for.push_back(static_cast<int32_t>(type.calls[i].after.size()));
    }
    Rank(agent);
    for (size_t i = 0; i < agent.calls.size(); ++i) {
      if (agent.waits_for[i] == 0) Join(agent, i, agent.arrived);
    }
  }

  // Sets lanes and seniority of an agent's calls. With kCallAge the order of joining decides.
  void Rank(Agent& agent) const {
    const AgentType& type = *agent.type;
    const std::vector<int64_t> calls_after = LongestAfter(type, [](size_t) { return int64_t{1}; });
    const std::vector<int64_t> tokens_after =
        LongestAfter(type, [&](size_t i) { return agent.calls[i].decode_tokens; });
    const auto first_step = static_cast<int64_t>(std::floor(agent.arrived / step_));
    std::vector<int64_t> made(agent.calls.size(), 0);
    for (size_t i = 0; i < agent.calls.size(); ++i) {
      Call& call = agent.calls[i];
      for (const int32_t before : type.calls[i].after)
        made[i] = std::max(made[i], made[before] + agent.calls[before].decode_tokens);
      agent.path_tokens = std::max(agent.path_tokens, made[i] + call.decode_tokens);
      switch (options_.order) {
        case CallOrder::kExitFirst:
          call.lane = static_cast<int32_t>(calls_after[i]);
          break;
        case CallOrder::kEntryFirst:
          call.lane = static_cast<int32_t>(-calls_after[i]);
          break;
        case CallOrder::kCallAge:
          break;
        case CallOrder::kParentAge:
          call.senior_step = core::SeniorStep(first_step, 0, 0);
          break;
        case CallOrder::kParentDue:
          // The bound on this adjustment is applied when the call joins.
          call.senior_step = core::SeniorStep(first_step, made[i], tokens_after[i]);
          break;
      }
    }
  }

  void Join(Agent& agent, size_t index, double now) {
    Call& call = agent.calls[index];
    if (options_.order == CallOrder::kParentDue || options_.order == CallOrder::kParentAge) {
      const auto step = static_cast<int64_t>(std::floor(now / step_));
      call.senior_step = step - core::Seniority(step, call.senior_step);
    }
    call.engine = Route(agent.type->calls[index]);
    call.joined = joined_++;
    run_.tokens_joined += call.prefill_tokens + call.decode_tokens;
    engines_[call.engine].Join(&call);
  }

  int32_t Route(const CallType& type) {
    if (type.choices == 1) return type.engine;
    if (options_.routing == Routing::kRandom) {
      return type.engine + static_cast<int32_t>(routes_.Below(static_cast<uint64_t>(type.choices)));
    }
    int32_t best = type.engine;
    const auto load = [&](int32_t e) {
      return options_.routing == Routing::kFewestCalls ? engines_[e].calls() : engines_[e].tokens_left();
    };
    for (int32_t e = best + 1; e < type.engine + type.choices; ++e) {
      if (load(e) < load(best)) best = e;
    }
    return best;
  }

  absl::Status StartBatches(double now) {
    for (size_t e = 0; e < engines_.size(); ++e) {
      if (ends_[e] < kNever || !engines_[e].Start()) continue;
      ends_[e] = now + network_.BatchTime(engines_[e].batch_tokens());
      // Also rejects a time too short to change the clock.
      if (ends_[e] > now && ends_[e] < kNever) continue;
      return absl::InvalidArgumentError(absl::StrCat("batch_time of ", engines_[e].batch_tokens(),
                                                     " tokens at time ", now, " is ",
                                                     network_.BatchTime(engines_[e].batch_tokens())));
    }
    return absl::OkStatus();
  }

  const Network& network_;
  const NetworkOptions& options_;
  Rng arrivals_, lengths_, routes_;
  std::vector<Engine> engines_;
  // By engine: when its batch ends.
  std::vector<double> ends_;
  // Duration of a full batch, the unit of seniority.
  const double step_;
  // By type: the next arrival.
  std::vector<double> next_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<Call*> ended_;
  uint64_t joined_ = 0;
  NetworkRun run_;
};

}  // namespace

absl::string_view CallOrderName(CallOrder order) {
  switch (order) {
    case CallOrder::kExitFirst:
      return "exit_first";
    case CallOrder::kEntryFirst:
      return "entry_first";
    case CallOrder::kCallAge:
      return "call_age";
    case CallOrder::kParentAge:
      return "parent_age";
    case CallOrder::kParentDue:
      return "parent_due";
  }
  return "";
}

int64_t NetworkRun::PeakOf(size_t from, size_t to) const {
  return *std::max_element(tokens.begin() + static_cast<std::ptrdiff_t>(from),
                           tokens.begin() + static_cast<std::ptrdiff_t>(to));
}

absl::StatusOr<NetworkRun> RunNetwork(const Network& network, const NetworkOptions& options) {
  const absl::Status checked = CheckNetwork(network, options);
  if (!checked.ok()) return checked;
  const absl::StatusOr<worker::BatchScheduler> scheduler = worker::BatchScheduler::Create(options.scheduler);
  if (!scheduler.ok()) return scheduler.status();
  return Simulation(network, options, *scheduler).Run();
}

}  // namespace bfio::sim
