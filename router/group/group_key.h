// What the members of a group have in common, and what groups of one name that differ in it are called.
//
// Purpose: members that disagree about what they compute give one prompt two answers, or cannot meet. By all
// that two workers can disagree about:
//   model, vocabulary, bos and eos ids, dtypes of the weights in use and of the KV cache, the engine (cpu and
//   cuda round otherwise), --mlp, eos_probability of the sim engine: WorkerHello::model, a digest over all of
//   them (worker/engine/model/model_digest.h);
//   kind of barrier, and with --mlp=tp the number of what is shared out: WorkerHello::barrier. Not compared
//   in groups without one;
//   plan mode, timeouts, how long requests are kept, whether ranks step alone: the router sends them
//   (EpochOffer), no worker brings its own; a worker that cannot step alone is refused where that is asked
//   (IndependentGroup);
//   slots, KV tokens, longest sequence, --token_budget, scheduler: may differ. They
//   are each worker's own, the router places by what each has, and no token depends on them but by rounding.
// Pure. Threads: any.
#ifndef BFIO_ROUTER_GROUP_GROUP_KEY_H_
#define BFIO_ROUTER_GROUP_GROUP_KEY_H_

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/rng.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

struct GroupKey {
  // Empty where ranks step by themselves.
  std::string barrier;
  // As WorkerHello has it.
  std::string model;

  friend bool operator==(const GroupKey&, const GroupKey&) = default;
};

inline constexpr size_t kMaxGroupNameBytes = 64;

// "model 0123456789ab, barrier star"
inline std::string Describe(const GroupKey& key) {
  constexpr size_t kShown = 12;
  return absl::StrCat("model ", key.model.empty() ? "unknown" : key.model.substr(0, kShown),
                      key.barrier.empty() ? "" : absl::StrCat(", barrier ", key.barrier));
}

// "~01234567": the same in every router's life.
inline std::string SuffixOf(const GroupKey& key) {
  uint64_t hash = 0;
  for (const std::string* part : {&key.barrier, &key.model}) {
    for (const char byte : *part) hash = Mix64(hash ^ static_cast<unsigned char>(byte)) + 1;
    hash = Mix64(hash) + 1;
  }
  return absl::StrCat("~", absl::Hex(static_cast<uint32_t>(hash), absl::kZeroPad8));
}

// The group of that key beside the one that is called `name`.
inline std::string NameBeside(absl::string_view name, const GroupKey& key) {
  const std::string suffix = SuffixOf(key);
  return absl::StrCat(name.substr(0, kMaxGroupNameBytes - suffix.size()), suffix);
}

// The name that a group of that key is beside of; `name` when it is beside none.
inline std::string BaseName(absl::string_view name, const GroupKey& key) {
  const std::string suffix = SuffixOf(key);
  if (name.size() > suffix.size() && absl::EndsWith(name, suffix)) name.remove_suffix(suffix.size());
  return std::string(name);
}

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_GROUP_KEY_H_
