#include "router/core/prefix/prefix_caches.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace bfio::core {
namespace {

// Weight of one prompt in the means of expected and found tokens: small enough that a single prompt has
// little effect, and large enough that trust adapts within seconds to an engine that restarts with an empty
// cache.
constexpr double kObservedShare = 1.0 / 32;

}  // namespace

void PrefixCaches::Open(absl::Span<const Member> members) {
  std::vector<Worker> before = std::exchange(workers_, {});
  const int64_t caches =
      std::count_if(members.begin(), members.end(), [](const Member& member) { return member.prefix_cache; });
  any_ = caches > 0;
  const int64_t most = kMostEntries / std::max<int64_t>(1, caches);
  for (const Member& member : members) {
    const auto same = std::find_if(before.begin(), before.end(), [&](const Worker& worker) {
      return member.member != 0 && worker.member.member == member.member &&
             worker.member.prefix_cache == member.prefix_cache && worker.member.kv_tokens == member.kv_tokens;
    });
    if (same != before.end()) {
      workers_.push_back(std::move(*same));
      before.erase(same);
      workers_.back().cache.SetMostEntries(most);
      continue;
    }
    workers_.push_back({member, PrefixCache(0, 0)});
    if (!member.prefix_cache) continue;
    workers_.back().cache = PrefixCache(member.kv_tokens, most);
  }
}

int64_t PrefixCaches::Find(WorkerIndex worker, absl::Span<const uint64_t> prefix,
                           int64_t prompt_tokens) const {
  return std::min(workers_[static_cast<size_t>(worker)].cache.Find(prefix), prompt_tokens - 1);
}

int64_t PrefixCaches::Expected(WorkerIndex worker, absl::Span<const uint64_t> prefix,
                               int64_t prompt_tokens) const {
  return Trusted(worker, Find(worker, prefix, prompt_tokens));
}

int64_t PrefixCaches::Trusted(WorkerIndex worker, int64_t found) const {
  return static_cast<int64_t>(static_cast<double>(found) * Trust(worker));
}

void PrefixCaches::Placed(WorkerIndex index, absl::Span<const uint64_t> prefix, int64_t prompt_tokens) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  if (!worker.member.prefix_cache) return;
  worker.cache.Await(prefix);
  worker.cache.Write(prompt_tokens - static_cast<int64_t>(prefix.size()) * kPrefixBlockTokens);
}

void PrefixCaches::Ended(WorkerIndex index, absl::Span<const uint64_t> prefix, int64_t generated_tokens) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  if (!worker.member.prefix_cache) return;
  worker.cache.Write(generated_tokens);
  // Its blocks were in use while the request ran.
  worker.cache.Complete(prefix);
}

void PrefixCaches::Withdrawn(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t computed_tokens) {
  workers_[static_cast<size_t>(worker)].cache.Withdraw(
      prefix, static_cast<size_t>(computed_tokens / kPrefixBlockTokens));
}

void PrefixCaches::Observed(WorkerIndex index, int64_t expected, int64_t found) {
  if (expected <= 0) return;
  Worker& worker = workers_[static_cast<size_t>(index)];
  worker.expected.Add(static_cast<double>(expected), kObservedShare);
  worker.found.Add(static_cast<double>(std::clamp<int64_t>(found, 0, expected)), kObservedShare);
  // Before the first prompt the cache counts as fully trusted.
  const double short_of = 1 - worker.found.value / worker.expected.value;
  worker.trust = 1 - worker.expected.weight * std::max(0.0, short_of);
}

}  // namespace bfio::core
