#include "worker/barrier/nccl/nccl_barrier.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace bfio::worker {
namespace {

// Busy polling before the first sleep: a barrier of ranks that arrive together takes less time.
constexpr absl::Duration kSpin = absl::Microseconds(50);
constexpr absl::Duration kNap = absl::Microseconds(20);

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

absl::Status NcclStatus(ncclResult_t result, absl::string_view what) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", ncclGetErrorString(result)));
}

// A rank's row of the table. Every other rank contributes zeros to it, so its sum is the row itself.
struct Row {
  int64_t epoch;
  int64_t step;
  int64_t load_tokens;
  int64_t local_ns;
  int64_t active;
  int64_t stop_flags;
};
constexpr size_t kRowWords = sizeof(Row) / sizeof(int64_t);

GroupView ViewOf(const Row& row) {
  return ViewOf(
      Contribution{row.load_tokens, row.local_ns, row.active, static_cast<uint32_t>(row.stop_flags)});
}

// Ends a polling loop on a deadline or an abort.
class Patience {
 public:
  Patience(absl::Duration timeout, const std::atomic<bool>& aborted)
      : start_(MonotonicNow()), deadline_(start_ + timeout), aborted_(aborted) {}

  // Yields or sleeps once; an error when the loop must end.
  absl::Status Wait() const {
    if (aborted_.load(std::memory_order_relaxed)) return absl::CancelledError("barrier aborted");
    const absl::Time now = MonotonicNow();
    if (now >= deadline_) return absl::DeadlineExceededError("a rank did not reach the barrier in time");
    if (now - start_ > kSpin) absl::SleepFor(kNap);
    return absl::OkStatus();
  }

 private:
  const absl::Time start_;
  const absl::Time deadline_;
  const std::atomic<bool>& aborted_;
};

// Runs ncclCommAbort. If it does not return, ends the process: its kernel may spin forever, and every later
// cudaFree, including the engine's, would block on it.
void AbortComm(ncclComm_t comm, int device, absl::Duration patience) {
  std::promise<void> promise;
  // Uses the monotonic clock; absl's waits use the wall clock.
  const std::future<void> done = promise.get_future();
  std::thread([comm, device, promise = std::move(promise)]() mutable {
    cudaSetDevice(device);
    ncclCommAbort(comm);
    promise.set_value();
  }).detach();
  if (done.wait_for(absl::ToChronoNanoseconds(patience)) == std::future_status::ready) return;
  std::fputs("bfio_worker: ncclCommAbort hangs: only a new process can use this GPU again\n", stderr);
  std::_Exit(1);
}

class NcclBarrier final : public Barrier {
 public:
  NcclBarrier(const GroupSpec& group, const NcclOptions& options)
      : epoch_(static_cast<int64_t>(group.epoch)),
        rank_(group.rank),
        world_size_(group.world_size),
        options_(options) {}
  ~NcclBarrier() override {
    Finish(absl::UnavailableError("left")).IgnoreError();
    if (event_ != nullptr) cudaEventDestroy(event_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    cudaFree(device_rows_);
    cudaFreeHost(host_rows_);
  }

  absl::Status Init(const std::string& communicator_id, absl::Duration timeout) {
    const Patience patience(timeout, aborted_);
    BFIO_RETURN_IF_ERROR(Allocate());
    ncclUniqueId id;
    std::memcpy(&id, communicator_id.data(), sizeof(id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t begun = ncclCommInitRankConfig(&comm_, world_size_, id, rank_, &config);
    if (absl::Status status = NcclStatus(begun, "ncclCommInitRankConfig"); !status.ok())
      return Finish(status);
    if (absl::Status status = AwaitComm(patience); !status.ok()) return Finish(status);
    return absl::OkStatus();
  }

  absl::StatusOr<GroupView> AllReduce(int64_t step, const Contribution& mine,
                                      absl::Duration timeout) override {
    if (!failure_.ok()) return failure_;
    const Patience patience(timeout, aborted_);
    absl::Status status =
        Launch({epoch_, step, mine.load_tokens, mine.local_ns, mine.active, mine.stop_flags}, patience);
    if (status.ok()) status = AwaitEvent(patience);
    if (!status.ok()) return Finish(status);
    return Summarise(step);
  }

  void Abort() override { aborted_.store(true); }

 private:
  size_t Bytes() const { return static_cast<size_t>(world_size_) * sizeof(Row); }

  absl::Status Allocate() {
    absl::Status status = CudaStatus(cudaSetDevice(options_.device), "cudaSetDevice");
    status.Update(CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
    status.Update(CudaStatus(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"));
    status.Update(CudaStatus(cudaMalloc(&device_rows_, Bytes()), "cudaMalloc"));
    status.Update(CudaStatus(cudaMallocHost(&host_rows_, Bytes()), "cudaMallocHost"));
    return status;
  }

  // Waits until a non-blocking NCCL call is finished; no work may be put on the stream before.
  absl::Status AwaitComm(const Patience& patience) {
    for (;;) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
      BFIO_RETURN_IF_ERROR(NcclStatus(asked, "ncclCommGetAsyncError"));
      if (state == ncclSuccess) return absl::OkStatus();
      BFIO_RETURN_IF_ERROR(NcclStatus(state, "NCCL"));
      BFIO_RETURN_IF_ERROR(patience.Wait());
    }
  }

  absl::Status Launch(const Row& mine, const Patience& patience) {
    Row* rows = static_cast<Row*>(host_rows_);
    std::memset(rows, 0, Bytes());
    rows[rank_] = mine;
    absl::Status status = CudaStatus(
        cudaMemcpyAsync(device_rows_, host_rows_, Bytes(), cudaMemcpyHostToDevice, stream_), "copy to GPU");
    if (!status.ok()) return status;
    status = NcclStatus(ncclAllReduce(device_rows_, device_rows_, world_size_ * kRowWords, ncclInt64, ncclSum,
                                      comm_, stream_),
                        "ncclAllReduce");
    if (status.ok()) status = AwaitComm(patience);
    if (!status.ok()) return status;
    status = CudaStatus(cudaMemcpyAsync(host_rows_, device_rows_, Bytes(), cudaMemcpyDeviceToHost, stream_),
                        "copy from GPU");
    status.Update(CudaStatus(cudaEventRecord(event_, stream_), "cudaEventRecord"));
    return status;
  }

  absl::Status AwaitEvent(const Patience& patience) {
    for (;;) {
      const cudaError_t state = cudaEventQuery(event_);
      if (state == cudaSuccess) return absl::OkStatus();
      if (state != cudaErrorNotReady) return CudaStatus(state, "all-reduce");
      ncclResult_t comm_state = ncclSuccess;
      ncclCommGetAsyncError(comm_, &comm_state);
      BFIO_RETURN_IF_ERROR(NcclStatus(comm_state, "NCCL"));
      BFIO_RETURN_IF_ERROR(patience.Wait());
    }
  }

  absl::StatusOr<GroupView> Summarise(int64_t step) {
    const Row* rows = static_cast<const Row*>(host_rows_);
    GroupView view = ViewOf(rows[0]);
    for (int32_t rank = 0; rank < world_size_; ++rank) {
      const Row& row = rows[rank];
      if (row.epoch != epoch_ || row.step != step) {
        return Finish(absl::InternalError(absl::StrCat("ranks disagree: rank ", rank, " is at step ",
                                                       row.step, " of epoch ", row.epoch, ", rank ", rank_,
                                                       " at step ", step, " of epoch ", epoch_)));
      }
      if (rank > 0) Fold(ViewOf(row), view);
    }
    return view;
  }

  // Ends the communicator: after an error every rank must abort it.
  absl::Status Finish(const absl::Status& status) {
    failure_ = status;
    if (comm_ != nullptr) AbortComm(std::exchange(comm_, nullptr), options_.device, options_.abort_patience);
    return failure_;
  }

  const int64_t epoch_;
  const int32_t rank_;
  const int32_t world_size_;
  const NcclOptions options_;
  std::atomic<bool> aborted_ = false;
  absl::Status failure_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  // [world_size] rows each; host_rows_ is pinned.
  void* device_rows_ = nullptr;
  void* host_rows_ = nullptr;
};

// The first communicator of a process loads NCCL's kernels, which takes seconds to a minute and cannot be
// aborted. Doing it here keeps it out of the forming of an epoch.
absl::Status LoadNccl(int device) {
  BFIO_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), "cudaSetDevice"));
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  absl::Status status = NcclStatus(ncclGetUniqueId(&id), "ncclGetUniqueId");
  if (status.ok()) status = NcclStatus(ncclCommInitRank(&comm, 1, id, 0), "ncclCommInitRank");
  if (comm != nullptr) ncclCommDestroy(comm);
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BarrierEndpoint>> NcclEndpoint::Create(const NcclOptions& options) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || options.device < 0 || options.device >= count) {
    return absl::UnavailableError(
        absl::StrCat("barrier 'nccl' needs GPU ", options.device, "; this machine has ", count,
                     error == cudaSuccess ? "" : absl::StrCat(" (", cudaGetErrorString(error), ")")));
  }
  BFIO_RETURN_IF_ERROR(LoadNccl(options.device));
  return std::unique_ptr<BarrierEndpoint>(new NcclEndpoint(options));
}

absl::StatusOr<std::string> NcclEndpoint::Offer() {
  if (offer_.empty()) {
    ncclUniqueId id;
    BFIO_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "ncclGetUniqueId"));
    offer_.assign(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  return offer_;
}

absl::StatusOr<std::unique_ptr<Barrier>> NcclEndpoint::Form(const GroupSpec& group, absl::Duration timeout,
                                                            std::stop_token stop) {
  BFIO_RETURN_IF_ERROR(CheckGroup(group));
  if (group.communicator_id.size() != sizeof(ncclUniqueId)) {
    return absl::InvalidArgumentError("the communicator id is not an ncclUniqueId");
  }
  if (group.communicator_id == offer_) offer_.clear();
  const absl::Time deadline = MonotonicNow() + timeout;
  auto barrier = std::make_unique<NcclBarrier>(group, options_);
  std::stop_callback on_stop(stop, [running = barrier.get()] { running->Abort(); });
  BFIO_RETURN_IF_ERROR(barrier->Init(group.communicator_id, timeout));
  // The first collective connects the ranks and loads the kernels; doing it here keeps that out of step 1.
  const auto formed = barrier->AllReduce(0, {}, deadline - MonotonicNow());
  if (!formed.ok()) return formed.status();
  return barrier;
}

}  // namespace bfio::worker
