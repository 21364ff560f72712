// A stream of the emulator: queued work runs when a thread waits for it, and not before.
//
// Purpose: a GPU runs queued work at some time before the wait ends; the emulator runs it at the latest time.
// This detects code that reads a result, or reuses memory, before it has waited. Kernels that are launched
// into a stream (Launch of device_simt.h) are queued; those without a stream run at once.
//
// Threads: one at a time. The work may wait for other threads, which run other streams.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace simt {

// Returns empty, or an error message.
using Work = std::function<std::string()>;

class WorkStream {
 public:
  void Push(Work work) { (recording_ != nullptr ? *recording_ : queued_).push_back(std::move(work)); }
  // The work that `queue` pushes is returned instead of queued.
  std::vector<Work> Record(const std::function<void()>& queue) {
    std::vector<Work> recorded;
    recording_ = &recorded;
    queue();
    recording_ = nullptr;
    return recorded;
  }
  // Runs all queued work. Returns empty, or the first error of this or an earlier run, after which nothing is
  // run.
  std::string Run() {
    std::vector<Work> works;
    works.swap(queued_);
    for (const Work& work : works) {
      if (!error_.empty()) break;
      error_ = work();
    }
    return error_;
  }

 private:
  std::vector<Work> queued_;
  std::vector<Work>* recording_ = nullptr;
  std::string error_;
};

}  // namespace simt

// The type to which cudaStream_t points. device_types.h declares it, and CUDA's headers do not define it
// either.
struct CUstream_st final : simt::WorkStream {};
