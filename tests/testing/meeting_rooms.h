// SGLang's bootstrap rooms, in which a rank that has a prompt waits for one that is to decode it, and the
// reverse: shared by the test engines that transfer KV. A rank whose partner is gone waits until its caller
// leaves, as SGLang does for 300 s. Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace bfio::testing {

class MeetingRooms {
 public:
  using Prompt = std::vector<uint32_t>;

  // A rank enters; `bootstrap` is the server that the request names.
  void Enter(int32_t room, bool computes, const std::string& bootstrap, const Prompt& prompt) {
    std::lock_guard lock(mutex_);
    Room& in = rooms_[room];
    std::string& here = computes ? in.computes : in.decodes;
    // Each room is used once, by two that agree.
    const std::string& other = computes ? in.decodes : in.computes;
    wrong += !here.empty() || in.computed || (!other.empty() && (other != bootstrap || in.prompt != prompt));
    here = bootstrap;
    in.prompt = prompt;
  }
  bool BothThere(int32_t room) {
    std::lock_guard lock(mutex_);
    return !rooms_[room].computes.empty() && !rooms_[room].decodes.empty();
  }
  void Computed(int32_t room) {
    std::lock_guard lock(mutex_);
    rooms_[room].computed = true;
    ++used;
  }
  bool IsComputed(int32_t room) {
    std::lock_guard lock(mutex_);
    return rooms_[room].computed;
  }

  std::atomic<int> used = 0, wrong = 0;

 private:
  struct Room {
    std::string computes, decodes;
    Prompt prompt;
    bool computed = false;
  };
  std::mutex mutex_;
  std::map<int32_t, Room> rooms_;
};

}  // namespace bfio::testing
