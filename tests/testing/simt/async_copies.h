// The asynchronous copies of one thread. They take effect when the thread waits for them, and not before.
#ifndef BFIO_TESTS_TESTING_SIMT_ASYNC_COPIES_H_
#define BFIO_TESTS_TESTING_SIMT_ASYNC_COPIES_H_

#include <cstddef>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

namespace simt {

class AsyncCopies {
 public:
  // Adds to the group that is still open. A null `source` copies zeros.
  void Add(void* target, const void* source, size_t bytes) { open_.push_back({target, source, bytes}); }

  void Commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }

  // Completes all groups except the `newest` ones.
  void Wait(size_t newest) {
    for (; groups_.size() > newest; groups_.pop_front()) {
      for (const Copy& copy : groups_.front()) {
        if (copy.source == nullptr) {
          std::memset(copy.target, 0, copy.bytes);
        } else {
          std::memcpy(copy.target, copy.source, copy.bytes);
        }
      }
    }
  }

  // Whether some copy is not complete.
  bool Pending() const {
    bool pending = !open_.empty();
    for (const auto& group : groups_) pending |= !group.empty();
    return pending;
  }

  void Forget() {
    open_.clear();
    groups_.clear();
  }

 private:
  struct Copy {
    void* target;
    const void* source;
    size_t bytes;
  };

  std::vector<Copy> open_;
  std::deque<std::vector<Copy>> groups_;
};

}  // namespace simt

#endif  // BFIO_TESTS_TESTING_SIMT_ASYNC_COPIES_H_
