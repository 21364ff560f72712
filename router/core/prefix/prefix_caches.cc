#include "router/core/prefix/prefix_caches.h"

#include <algorithm>
#include <limits>
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

void PrefixCaches::Changed(WorkerIndex index, absl::Span<const PrefixChange> changes) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  if (worker.member.prefix_cache) worker.cache.Change(changes);
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

int64_t PrefixCache::Find(absl::Span<const uint64_t> blocks) const {
  if (blocks.empty() || !Has(blocks.front())) return 0;
  // The first block that is not cached.
  const auto end =
      std::partition_point(blocks.begin(), blocks.end(), [this](uint64_t block) { return Has(block); });
  return (end - blocks.begin()) * kPrefixBlockTokens;
}

void PrefixCache::Enter(absl::Span<const uint64_t> blocks, int32_t awaited, bool computed) {
  // Further blocks would be evicted at once.
  blocks = blocks.subspan(0, static_cast<size_t>(most_entries_));
  // From the last block, so that the first one counts as used most recently.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    Index at = kNone;
    if (const auto it = index_.find(*block); it != index_.end()) {
      at = it->second;
      Unlink(at);
      LinkFront(at);
    } else {
      at = PushFront(*block, kPrefixBlockTokens, true);
    }
    nodes_[at].awaited = std::max(0, nodes_[at].awaited + awaited);
    nodes_[at].computed |= computed;
  }
  Shrink();
}

void PrefixCache::Withdraw(absl::Span<const uint64_t> blocks, size_t computed) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto it = index_.find(blocks[i]);
    if (it == index_.end()) continue;
    Node& node = nodes_[it->second];
    node.awaited = std::max(0, node.awaited - 1);
    node.computed |= i < computed;
    if (node.awaited == 0 && !node.computed) Remove(it->second);
  }
}

void PrefixCache::Change(absl::Span<const PrefixChange> changes) {
  told_ = true;
  for (const PrefixChange& change : changes) {
    if (change.stored) {
      Enter({&change.block, 1}, 0, true);
    } else if (const auto it = index_.find(change.block); it != index_.end()) {
      Remove(it->second);
    }
  }
}

void PrefixCache::Write(int64_t tokens) {
  if (told_) return;
  loose_ += std::max<int64_t>(0, tokens);
  const int64_t whole = loose_ / kPrefixBlockTokens * kPrefixBlockTokens;
  if (whole == 0) return;
  loose_ -= whole;
  PushFront(0, whole, false);
  Shrink();
}

void PrefixCache::SetMostEntries(int64_t most_entries) {
  most_entries_ = most_entries;
  Shrink();
}

void PrefixCache::Lose(int64_t ppm) {
  constexpr int64_t kMillion = 1'000'000;
  owed_ += tokens_ * ppm;
  while (oldest_ != kNone && owed_ >= nodes_[oldest_].tokens * kMillion) {
    owed_ -= nodes_[oldest_].tokens * kMillion;
    Remove(oldest_);
  }
}

PrefixCache::Index PrefixCache::PushFront(uint64_t block, int64_t tokens, bool named) {
  Index at = static_cast<Index>(nodes_.size());
  if (unused_.empty()) {
    nodes_.emplace_back();
  } else {
    at = unused_.back();
    unused_.pop_back();
  }
  nodes_[at] = {.block = block, .tokens = tokens, .named = named};
  if (named) index_.emplace(block, at);
  tokens_ += tokens;
  LinkFront(at);
  return at;
}

void PrefixCache::LinkFront(Index at) {
  nodes_[at].newer = kNone;
  nodes_[at].older = newest_;
  (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = at;
  newest_ = at;
}

void PrefixCache::Unlink(Index at) {
  const Node& node = nodes_[at];
  (node.newer == kNone ? newest_ : nodes_[node.newer].older) = node.older;
  (node.older == kNone ? oldest_ : nodes_[node.older].newer) = node.newer;
}

void PrefixCache::Remove(Index at) {
  Unlink(at);
  if (nodes_[at].named) index_.erase(nodes_[at].block);
  tokens_ -= nodes_[at].tokens;
  unused_.push_back(at);
}

void PrefixCache::Shrink() {
  const int64_t capacity = told_ ? std::numeric_limits<int64_t>::max() : capacity_tokens_;
  while (oldest_ != kNone && (tokens_ > capacity || entries() > most_entries_)) Remove(oldest_);
}

}  // namespace bfio::core
