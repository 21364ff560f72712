// The key that all members of a group share, and the names of groups that differ only in it.
//
// Purpose: members that compute different things give different answers to one prompt, or cannot form a
// barrier. How each property in which two workers can differ is treated:
//   model, vocabulary, bos and eos ids, dtypes of the weights in use and of the KV cache, the engine (cpu and
//   cuda round differently), eos_probability of the sim engine: in WorkerHello::model, a digest over all of
//   them (worker/engine/model/model.h);
//   kind of barrier: in WorkerHello::barrier. Not compared in groups without a barrier;
//   plan mode, timeouts, how long requests are kept, whether ranks step alone: the router sends them
//   (EpochOffer), so they cannot differ. IndependentGroup refuses a worker that cannot step alone;
//   slots, KV tokens, longest sequence, --token_budget, scheduler: may differ. The router places requests by
//   each worker's own values, and they change tokens only by rounding.
// Pure. Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/rng.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

struct GroupKey {
  // WorkerHello::barrier; empty where ranks step independently.
  std::string barrier;
  // WorkerHello::model.
  std::string model;
  // WorkerHello::hands_over.
  bool hands_over = false;

  friend bool operator==(const GroupKey&, const GroupKey&) = default;
};

inline constexpr size_t kMaxGroupNameBytes = 64;

// For example "model 0123456789ab, barrier star".
inline std::string Describe(const GroupKey& key) {
  constexpr size_t kShown = 12;
  return absl::StrCat("model ", key.model.empty() ? "unknown" : key.model.substr(0, kShown),
                      key.barrier.empty() ? "" : absl::StrCat(", barrier ", key.barrier));
}

// For example "~01234567". It is the same in every run of the router.
inline std::string SuffixOf(const GroupKey& key) {
  uint64_t hash = 0;
  for (const std::string* part : {&key.barrier, &key.model}) {
    for (const char byte : *part) hash = Mix64(hash ^ static_cast<unsigned char>(byte)) + 1;
    hash = Mix64(hash) + 1;
  }
  return absl::StrCat("~", absl::Hex(static_cast<uint32_t>(hash), absl::kZeroPad8));
}

// Name of the group with that key beside the group `name`.
inline std::string NameBeside(absl::string_view name, const GroupKey& key) {
  const std::string suffix = SuffixOf(key);
  return absl::StrCat(name.substr(0, kMaxGroupNameBytes - suffix.size()), suffix);
}

// The name without the suffix of that key; `name` itself when it has none.
inline std::string BaseName(absl::string_view name, const GroupKey& key) {
  const std::string suffix = SuffixOf(key);
  if (name.size() > suffix.size() && absl::EndsWith(name, suffix)) name.remove_suffix(suffix.size());
  return std::string(name);
}

}  // namespace bfio::router
