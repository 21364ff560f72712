#include "router/engine_link/published/kv_events.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "router/engine_link/published/msgpack_reader.h"

namespace bfio::router {
namespace {

// The places of a batch's fields, and of those of events.
constexpr std::array<absl::string_view, 3> kBatch = {"ts", "events", "data_parallel_rank"};
constexpr std::array<absl::string_view, 4> kRemoved = {"type", "block_hashes", "medium", "group_idx"};
constexpr std::array<absl::string_view, 10> kStored = {
    "type",    "block_hashes", "parent_block_hash", "token_ids",  "block_size",
    "lora_id", "medium",       "lora_name",         "extra_keys", "group_idx"};

class KvReader final : public MsgpackReader {
 public:
  std::vector<KvEvent> events;

 private:
  bool InEvent() const { return depth() >= 3 && NameIn(0, kBatch) == "events"; }
  // The field of an event.
  absl::string_view Field() const {
    return type_ == "BlockStored" ? NameIn(2, kStored) : NameIn(2, kRemoved);
  }

  void OnStart() override {
    if (depth() != 2) return;
    event_ = {};
    type_.clear();
    counts_ = true;
  }
  void OnValue(const Value& value) override {
    if (!InEvent()) return;
    const absl::string_view field = Field();
    if (field == "extra_keys" && !value.null) event_.special = true;
    if (depth() == 4 && field == "block_hashes") event_.blocks.push_back(value.word);
    if (depth() == 4 && field == "token_ids") event_.tokens.push_back(static_cast<uint32_t>(value.word));
    if (depth() != 3) return;
    if (field == "type") type_ = std::string(value.text);
    if (field == "medium") counts_ = counts_ && (value.text.empty() || value.text == "GPU");
    if (field == "group_idx") counts_ = counts_ && value.number == 0;
    if (field == "parent_block_hash" && !value.null) event_.parent = value.word;
    if (field == "block_size") event_.block_tokens = static_cast<int64_t>(value.word);
    if ((field == "lora_id" || field == "lora_name") && !value.null) event_.special = true;
  }
  void OnEnd() override {
    if (depth() != 2 || NameIn(0, kBatch) != "events") return;
    using Kind = KvEvent::Kind;
    for (const auto& [name, kind] : {std::pair("BlockStored", Kind::kStored),
                                     {"BlockRemoved", Kind::kRemoved},
                                     {"AllBlocksCleared", Kind::kCleared}}) {
      if (type_ != name || !(counts_ || kind == Kind::kCleared)) continue;
      event_.kind = kind;
      events.push_back(std::move(event_));
    }
  }

  KvEvent event_;
  std::string type_;
  bool counts_ = true;
};

}  // namespace

absl::StatusOr<std::vector<KvEvent>> ReadKvEvents(absl::string_view payload) {
  KvReader reader;
  if (reader.Read(payload)) return std::move(reader.events);
  return absl::InvalidArgumentError("it is no msgpack of KV events");
}

void KvEvents::Begin(int32_t number, int64_t blocks) {
  MutexLock lock(&mutex_);
  const auto [at, added] = ranks_.try_emplace(number);
  Rank& rank = at->second;
  if (added) rank.exact = exact_;
  rank.blocks = std::max<int64_t>(1, blocks);
  rank.lost = 0;
  rank.changes.clear();
  for (const auto& [hash, block] : rank.held) {
    for (const uint64_t name : block.ends_of)
      if (rank.changes.size() < kMostWaiting) rank.changes[name] = true;
  }
}

absl::Status KvEvents::Take(int32_t number, uint64_t at, absl::string_view message) {
  const absl::StatusOr<std::vector<KvEvent>> events = ReadKvEvents(message);
  MutexLock lock(&mutex_);
  Rank& rank = ranks_[number];
  if (!events.ok() || (rank.next && at != *rank.next)) LoseAll(rank);
  rank.next = events.ok() ? std::optional(at + 1) : std::nullopt;
  if (!events.ok()) return events.status();
  for (const KvEvent& event : *events) Apply(rank, event);
  return absl::OkStatus();
}

void KvEvents::LoseAll(Rank& rank) {
  rank.lost = 1;
  rank.held.clear();
  rank.changes.clear();
}

void KvEvents::Apply(Rank& rank, const KvEvent& event) {
  if (event.kind == KvEvent::Kind::kCleared) return LoseAll(rank);
  const bool stored = event.kind == KvEvent::Kind::kStored;
  if (!rank.exact) {
    if (!stored) rank.lost += static_cast<double>(event.blocks.size()) / static_cast<double>(rank.blocks);
    return;
  }
  if (stored) {
    Store(rank, event);
  } else {
    for (const uint64_t block : event.blocks) {
      const auto at = rank.held.find(block);
      if (at == rank.held.end()) continue;
      for (const uint64_t name : at->second.ends_of) rank.changes[name] = false;
      rank.held.erase(at);
    }
  }
  if (rank.changes.size() > kMostWaiting) LoseAll(rank);
  if (rank.held.size() <= kMostBlocks / ranks_.size()) return;
  rank.exact = false;
  LoseAll(rank);
}

void KvEvents::Store(Rank& rank, const KvEvent& event) {
  const int64_t each = event.block_tokens;
  if (event.special || each < 1 || each > std::ssize(event.tokens) ||
      std::ssize(event.tokens) != std::ssize(event.blocks) * each) {
    return;
  }
  Block block;
  if (event.parent) {
    const auto parent = rank.held.find(*event.parent);
    // Its beginning was told before the router listened, or was lost.
    if (parent == rank.held.end()) return;
    block = {parent->second.name, parent->second.end};
  }
  absl::Span<const uint32_t> tokens = event.tokens;
  for (const uint64_t hash : event.blocks) {
    block.ends_of.clear();
    for (int64_t left = each; left > 0;) {
      const int64_t piece = std::min(left, core::kPrefixBlockTokens - block.end % core::kPrefixBlockTokens);
      block.name = core::NameAfter(block.name, tokens.subspan(0, static_cast<size_t>(piece)));
      tokens.remove_prefix(static_cast<size_t>(piece));
      block.end += piece;
      left -= piece;
      if (block.end % core::kPrefixBlockTokens == 0) block.ends_of.push_back(block.name);
    }
    for (const uint64_t name : block.ends_of) rank.changes[name] = true;
    rank.held[hash] = block;
  }
}

void KvEvents::TakeChanges(int32_t number, EngineLoad& load) {
  MutexLock lock(&mutex_);
  const auto at = ranks_.find(number);
  if (at == ranks_.end()) return;
  Rank& rank = at->second;
  load.cache_lost_ppm = static_cast<int64_t>(1e6 * std::min(1.0, std::exchange(rank.lost, 0)));
  while (!rank.changes.empty() && load.cache_changes.size() < kMostChanges) {
    const auto first = rank.changes.begin();
    load.cache_changes.push_back({first->first, first->second});
    rank.changes.erase(first);
  }
}

}  // namespace bfio::router
