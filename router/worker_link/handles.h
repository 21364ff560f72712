// How one worker's link names requests. A handle means something only on the link on which it was given out:
// no worker can name a request of another, and no handle of an earlier router names one of this. The handle
// of a placement is the request's id, encrypted with a key that is drawn for the link. A request that the
// worker holds from an earlier router keeps the handle by which the worker knows it, and gets an id of this
// router. Threads: any.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "router/requests/request.h"

namespace bfio::router {

// The block cipher Speck64/128: a bijection of 64 bits, in a few nanoseconds.
class HandleCipher {
 public:
  // The key's words, least significant first.
  explicit HandleCipher(const std::array<uint32_t, 4>& key) {
    std::array<uint32_t, 3 + kRounds> rest{key[1], key[2], key[3]};
    keys_[0] = key[0];
    for (uint32_t i = 0; i + 1 < kRounds; ++i) {
      rest[i + 3] = (keys_[i] + std::rotr(rest[i], 8)) ^ i;
      keys_[i + 1] = std::rotl(keys_[i], 3) ^ rest[i + 3];
    }
  }
  static HandleCipher Random() {
    std::random_device random;
    return HandleCipher({random(), random(), random(), random()});
  }

  uint64_t Encrypt(uint64_t plain) const {
    auto x = static_cast<uint32_t>(plain >> 32), y = static_cast<uint32_t>(plain);
    for (const uint32_t key : keys_) {
      x = (std::rotr(x, 8) + y) ^ key;
      y = std::rotl(y, 3) ^ x;
    }
    return uint64_t{x} << 32 | y;
  }
  uint64_t Decrypt(uint64_t secret) const {
    auto x = static_cast<uint32_t>(secret >> 32), y = static_cast<uint32_t>(secret);
    for (size_t i = kRounds; i-- > 0;) {
      y = std::rotr(y ^ x, 3);
      x = std::rotl((x ^ keys_[i]) - y, 8);
    }
    return uint64_t{x} << 32 | y;
  }

 private:
  static constexpr size_t kRounds = 27;
  std::array<uint32_t, kRounds> keys_;
};

class Handles {
 public:
  // Bound of the requests that a worker may announce, ended ones included.
  static constexpr size_t kMostAnnounced = 65536;

  // A handle that the worker did not get gives an id that no request has.
  core::RequestId IdOf(uint64_t handle) const {
    MutexLock lock(&mutex_);
    const auto it = ids_.find(handle);
    return it == ids_.end() ? cipher_.Decrypt(handle) : it->second;
  }
  uint64_t HandleOf(core::RequestId id) const {
    MutexLock lock(&mutex_);
    const auto it = handles_.find(id);
    return it == handles_.end() ? cipher_.Encrypt(id) : it->second;
  }
  // The id of a request that the worker has announced under this handle: `next_id` of the first time. Empty:
  // it has announced too many.
  template <typename NextId>
  std::optional<core::RequestId> Announced(uint64_t handle, NextId next_id) {
    MutexLock lock(&mutex_);
    const auto it = ids_.find(handle);
    if (it != ids_.end()) return it->second;
    if (ids_.size() >= kMostAnnounced) return std::nullopt;
    const core::RequestId id = next_id();
    ids_.emplace(handle, id);
    handles_.emplace(id, handle);
    return id;
  }

 private:
  const HandleCipher cipher_ = HandleCipher::Random();
  mutable Mutex mutex_;
  // Of announced requests.
  absl::flat_hash_map<uint64_t, core::RequestId> ids_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<core::RequestId, uint64_t> handles_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router
