#include "tools/top/measurements.h"

#include <algorithm>
#include <map>

#include "common/telemetry/metrics/distribution.h"

namespace bfio::top {
namespace {

double SecondsOf(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + 1e-9 * time.nanos();
}

std::optional<double> Ratio(double part, double whole) {
  if (!(whole > 0)) return std::nullopt;
  return part / whole;
}

// Quantiles of the samples that were added between two readings of a distribution.
std::optional<Quantiles> Between(const v1::Distribution& before, const v1::Distribution& now) {
  std::vector<uint64_t> counts(now.counts().begin(), now.counts().end());
  uint64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (before.counts_size() == now.counts_size()) {
      const uint64_t old = before.counts(static_cast<int>(i));
      counts[i] -= std::min(counts[i], old);
    }
    total += counts[i];
  }
  if (total == 0) return std::nullopt;
  const std::vector<double> bounds(now.upper_bounds().begin(), now.upper_bounds().end());
  return Quantiles{BucketQuantile(bounds, counts, 0.5), BucketQuantile(bounds, counts, 0.99)};
}

void AddRates(const v1::ClusterState& before, Measurements& figures) {
  const v1::StepTotals &a = before.steps(), &b = figures.state.steps();
  const double seconds = figures.seconds;
  figures.tokens_per_s = Ratio(static_cast<double>(b.generated_tokens() - a.generated_tokens()), seconds);
  figures.steps_per_s = Ratio(static_cast<double>(b.steps() - a.steps()), seconds);
  const auto mean =
      Ratio(b.mean_load_tokens() - a.mean_load_tokens(), b.max_load_tokens() - a.max_load_tokens());
  if (mean) figures.idle = std::max(0.0, 1 - *mean);
  figures.barrier_wait = Ratio(b.barrier_wait_s() - a.barrier_wait_s(), b.rank_step_s() - a.rank_step_s());
  figures.decide_s = Ratio(b.decide_s() - a.decide_s(), static_cast<double>(b.decisions() - a.decisions()));
}

// Data of a group besides its workers.
struct Group {
  uint64_t epoch = 0;
  // Both readings are of the same epoch, so ranks and the epoch's counts can be compared.
  bool same = false;
  // Steps between the readings in which one of its ranks was the slowest.
  uint64_t steps = 0;
  const v1::StepSummary* last = nullptr;
};

// By name. A router of a version without groups has one group with an empty name.
std::map<std::string, Group> GroupsOf(const v1::ClusterState& before, const v1::ClusterState& now,
                                      absl::Span<const v1::StepSummary> steps) {
  std::map<std::string, Group> groups;
  std::map<uint32_t, std::string> names;
  for (const v1::GroupState& group : now.groups()) {
    groups[group.name()].epoch = group.epoch();
    names[group.index()] = group.name();
  }
  for (const v1::GroupState& group : before.groups()) {
    const auto found = groups.find(group.name());
    if (found != groups.end()) found->second.same = found->second.epoch == group.epoch();
  }
  if (now.groups().empty()) groups[""] = {now.epoch(), before.epoch() == now.epoch()};
  for (const v1::StepSummary& step : steps) {
    Group& group = groups[names[step.group()]];
    if (group.epoch == step.epoch()) group.last = &step;
  }
  return groups;
}

// How often each worker was the slowest between the readings. Workers whose group has changed are left out.
std::map<std::string, uint64_t> SlowestSteps(const v1::ClusterState& before, const v1::ClusterState& now,
                                             std::map<std::string, Group>& groups) {
  std::map<std::string, uint64_t> result, old;
  for (const v1::WorkerState& worker : before.workers()) old[worker.worker_id()] = worker.straggler_steps();
  for (const v1::WorkerState& worker : now.workers()) {
    Group& group = groups[worker.group()];
    if (!group.same) continue;
    const uint64_t steps =
        worker.straggler_steps() - std::min(old[worker.worker_id()], worker.straggler_steps());
    result[worker.worker_id()] = steps;
    group.steps += steps;
  }
  return result;
}

void AddWorkers(const v1::ClusterState& before, absl::Span<const v1::StepSummary> steps,
                Measurements& figures) {
  std::map<std::string, Group> groups = GroupsOf(before, figures.state, steps);
  const std::map<std::string, uint64_t> slowest = SlowestSteps(before, figures.state, groups);
  figures.several_groups = figures.state.groups_size() > 1;
  uint64_t most = 0;
  double sum = 0;
  for (const v1::WorkerState& worker : figures.state.workers()) {
    WorkerMeasurements& row = figures.workers.emplace_back();
    row.worker_id = worker.worker_id();
    row.group = worker.group();
    row.phase = worker.phase();
    row.running = worker.active_requests();
    row.slots = worker.slots();
    row.load_tokens = worker.load_tokens();
    row.kv_tokens = worker.kv_tokens();
    row.reserved_kv_tokens = worker.reserved_kv_tokens();
    if (!worker.has_rank()) continue;
    row.rank = worker.rank();
    figures.running += row.running;
    figures.slots += row.slots;
    if (!figures.max_rank || row.load_tokens > figures.max_load) {
      figures.max_rank = row.rank;
      figures.max_group = row.group;
    }
    figures.max_load = std::max(figures.max_load, row.load_tokens);
    figures.min_load = figures.ranks == 0 ? row.load_tokens : std::min(figures.min_load, row.load_tokens);
    sum += static_cast<double>(row.load_tokens);
    ++figures.ranks;
    const Group& group = groups[row.group];
    const auto found = slowest.find(row.worker_id);
    if (group.steps > 0 && found != slowest.end()) {
      row.slowest = static_cast<double>(found->second) / static_cast<double>(group.steps);
      if (found->second > most) {
        most = found->second;
        figures.straggler = row.rank;
        figures.straggler_group = row.group;
      }
    }
    const v1::StepSummary* step = group.last;
    const int rank = static_cast<int>(worker.rank());
    if (step != nullptr && rank < step->local_ns_size() && rank < step->barrier_wait_ns_size()) {
      row.local_s = 1e-9 * static_cast<double>(step->local_ns(rank));
      row.wait_s = 1e-9 * static_cast<double>(step->barrier_wait_ns(rank));
    }
  }
  if (figures.ranks > 0) figures.mean_load = sum / figures.ranks;
  std::stable_sort(figures.workers.begin(), figures.workers.end(),
                   [](const WorkerMeasurements& a, const WorkerMeasurements& b) {
                     if (a.rank.has_value() != b.rank.has_value()) return a.rank.has_value();
                     if (a.group != b.group) return a.group < b.group;
                     return a.rank.value_or(0) < b.rank.value_or(0);
                   });
}

}  // namespace

Measurements Compare(const v1::ClusterState& before, const v1::ClusterState& now,
                     absl::Span<const v1::StepSummary> steps) {
  // Counters of one router never decrease.
  const bool same = before.uptime().seconds() <= now.uptime().seconds() &&
                    before.steps().steps() <= now.steps().steps() &&
                    before.steps().generated_tokens() <= now.steps().generated_tokens() &&
                    before.steps().decisions() <= now.steps().decisions();
  const v1::ClusterState& from = same ? before : now;
  Measurements figures;
  figures.state = now;
  figures.seconds = SecondsOf(now.timestamp()) - SecondsOf(from.timestamp());
  AddRates(from, figures);
  figures.first_token_s =
      Between(from.latencies().time_to_first_token_s(), now.latencies().time_to_first_token_s());
  figures.between_tokens_s = Between(from.latencies().inter_token_s(), now.latencies().inter_token_s());
  AddWorkers(from, steps, figures);
  return figures;
}

}  // namespace bfio::top
