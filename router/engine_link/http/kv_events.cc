#include "router/engine_link/http/kv_events.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "router/engine_link/http/msgpack_reader.h"

namespace bfio::router {
namespace {

// The places of a batch's fields, and of those of an event that tells a loss.
constexpr std::array<absl::string_view, 3> kBatch = {"ts", "events", "data_parallel_rank"};
constexpr std::array<absl::string_view, 4> kEvent = {"type", "block_hashes", "medium", "group_idx"};

class KvReader final : public MsgpackReader {
 public:
  KvLosses losses;

 private:
  struct Event {
    std::string type, medium;
    int64_t blocks = 0;
    bool first_group = true;
  };

  bool InEvents() const { return depth() >= 2 && NameIn(0, kBatch) == "events"; }

  void OnStart() override {
    if (depth() == 2) event_ = {};
  }
  void OnValue(absl::string_view text, double number) override {
    if (depth() == 3 && InEvents()) {
      const absl::string_view field = NameIn(2, kEvent);
      if (field == "type") event_.type = std::string(text);
      if (field == "medium") event_.medium = std::string(text);
      if (field == "group_idx") event_.first_group = number == 0;
    }
    if (depth() == 4 && InEvents() && NameIn(2, kEvent) == "block_hashes") ++event_.blocks;
  }
  void OnEnd() override {
    if (depth() != 2 || !InEvents()) return;
    if (event_.type == "AllBlocksCleared") losses.all = true;
    const bool counts = event_.medium.empty() || event_.medium == "GPU";
    if (event_.type == "BlockRemoved" && counts && event_.first_group) losses.blocks += event_.blocks;
  }

  Event event_;
};

}  // namespace

absl::StatusOr<KvLosses> ReadKvEvents(absl::string_view payload) {
  KvReader reader;
  if (reader.Read(payload)) return reader.losses;
  return absl::InvalidArgumentError("it is no msgpack of KV events");
}

void KvEvents::SetBlocks(int32_t rank, int64_t blocks) {
  MutexLock lock(&mutex_);
  ranks_[rank].blocks = std::max<int64_t>(1, blocks);
}

absl::Status KvEvents::Take(int32_t number, uint64_t at, absl::string_view message) {
  const absl::StatusOr<KvLosses> losses = ReadKvEvents(message);
  MutexLock lock(&mutex_);
  Rank& rank = ranks_[number];
  if (!losses.ok() || losses->all || (rank.next && at != *rank.next)) rank.lost = 1;
  rank.next = losses.ok() ? std::optional(at + 1) : std::nullopt;
  if (losses.ok()) rank.lost += static_cast<double>(losses->blocks) / static_cast<double>(rank.blocks);
  return losses.status();
}

int64_t KvEvents::TakeLost(int32_t number) {
  MutexLock lock(&mutex_);
  const auto at = ranks_.find(number);
  if (at == ranks_.end()) return 0;
  return static_cast<int64_t>(1e6 * std::min(1.0, std::exchange(at->second.lost, 0)));
}

}  // namespace bfio::router
