// The prompt of a request, computed by one rank for another (disaggregated prefill). The KV stays on the
// first rank until the second has fetched it. It is sent to one rank only: once fetched, or after the lease
// of the engine that keeps it, its blocks are used for other prompts, and an engine that fetches them
// generates wrong tokens without an error. Threads: any; never changed, but for what it points to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"

namespace bfio::router {

// How long a hand-off may wait for a rank. vLLM keeps blocks for 30 s (kv_lease_duration, the NIXL
// connector); the rest is for the way there, and for a server that is late.
inline constexpr absl::Duration kHandOffAge = absl::Seconds(20);
// After so many hand-offs that came to nothing, a request is computed where it decodes.
inline constexpr int kMostHandOffs = 3;
// Most bytes of a hand-off's parameters: NIXL's name a block of 16 tokens with up to 9.
inline constexpr size_t kHandOffBytes = 16 << 10, kHandOffBytesPerToken = 4;

// The KV that an engine keeps for a rank. Whoever drops it without having sent it to one has it freed.
class KeptKv {
 public:
  explicit KeptKv(std::function<void()> free) : free_(std::move(free)) {}
  ~KeptKv() {
    if (!sent_) free_();
  }
  KeptKv(const KeptKv&) = delete;
  KeptKv& operator=(const KeptKv&) = delete;
  void Sent() { sent_ = true; }

 private:
  const std::function<void()> free_;
  std::atomic<bool> sent_ = false;
};

struct RequestHandOff {
  // What the engine that decodes needs, in the connector's form; empty: the engine has handed nothing over.
  std::string parameters;
  // The engine that keeps the KV, and where; empty: not named.
  std::string engine = {}, source = {};
  // Of one that a gateway has had made: its name there.
  std::string name = {};
  // Of a prompt that is computed while the other rank waits for it: what that needs, set by the server that
  // computes when it begins. Both are of one thread. Null: `parameters` has it.
  std::shared_ptr<std::string> meeting = {};
  // Null: it is not freed early.
  std::shared_ptr<KeptKv> kept = {};
  // The gateway is one that may (trust_kv_transfer).
  bool trusted = false;
};
using HandOffPtr = std::shared_ptr<const RequestHandOff>;

// Marks the status of a prompt whose engine has answered a hand-off that cannot be right: it counts among
// kMostHandOffs. A payload, as that of NotTried.
[[nodiscard]] inline absl::Status WrongHandOff(absl::Status status) {
  status.SetPayload("bfio/wrong-hand-off", absl::Cord());
  return status;
}
inline bool IsWrongHandOff(const absl::Status& status) {
  return status.GetPayload("bfio/wrong-hand-off").has_value();
}

// The hand-offs of gateways that have been used. Of kMost the last are known: many more than engines keep.
class UsedHandOffs {
 public:
  static constexpr size_t kMost = 1 << 16;

  bool Contains(const RequestHandOff& hand_off) const { return used_.contains(KeyOf(hand_off)); }
  void Add(const RequestHandOff& hand_off) {
    if (!used_.insert(KeyOf(hand_off)).second) return;
    order_.push_back(KeyOf(hand_off));
    if (order_.size() <= kMost) return;
    used_.erase(order_.front());
    order_.pop_front();
  }

 private:
  static uint64_t KeyOf(const RequestHandOff& of) { return absl::HashOf(of.engine, of.name); }

  absl::flat_hash_set<uint64_t> used_;
  std::deque<uint64_t> order_;
};

}  // namespace bfio::router
