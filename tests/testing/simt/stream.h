// A stream of the emulator: what is queued runs when somebody waits for it, and not before.
//
// Purpose: a GPU runs what is queued at some time up to the wait; here it is the last moment, so that code
// which reads a result, or reuses memory, before it has waited is found out. Kernels that are launched into a
// stream (Launch of device_simt.h) are queued there; those without a stream run at once.
//
// Threads: one at a time. The work may wait for other threads, which run other streams.
#ifndef BFIO_TESTS_TESTING_SIMT_STREAM_H_
#define BFIO_TESTS_TESTING_SIMT_STREAM_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace simt {

// Empty, or what went wrong.
using Work = std::function<std::string()>;

class WorkStream {
 public:
  void Push(Work work) { (recording_ != nullptr ? *recording_ : queued_).push_back(std::move(work)); }
  // What `queue` pushes goes into the result instead.
  std::vector<Work> Record(const std::function<void()>& queue) {
    std::vector<Work> recorded;
    recording_ = &recorded;
    queue();
    recording_ = nullptr;
    return recorded;
  }
  // Runs all that is queued. Empty, or what went wrong first, now or before: nothing is run after that.
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

// cudaStream_t points to it, which device_types.h names and CUDA's headers do not define either.
struct CUstream_st final : simt::WorkStream {};

#endif  // BFIO_TESTS_TESTING_SIMT_STREAM_H_
