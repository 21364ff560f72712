#include "worker/barrier/nccl/nccl_barrier.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/barrier/device_collectives.h"
#include "worker/barrier/summation_tree.h"
#include "worker/barrier/view.h"

namespace bfio::worker {
namespace {

// Busy polling before the first sleep: a barrier of ranks that arrive together takes less time.
constexpr absl::Duration kSpin = absl::Microseconds(50);
// Busy polling while NCCL's own thread launches a collective, twice per layer: a sleep would take longer.
constexpr absl::Duration kLaunchSpin = absl::Milliseconds(2);
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
  // Number of calls so far, of all kinds.
  int64_t call;
  int64_t load_tokens;
  int64_t local_ns;
  int64_t active;
  int64_t rows;
  int64_t stop_flags;
};
constexpr size_t kRowWords = sizeof(Row) / sizeof(int64_t);

GroupView ViewOf(const Row& row) {
  return ViewOf(Contribution{row.load_tokens, row.local_ns, row.active, row.rows,
                             static_cast<uint32_t>(row.stop_flags)});
}

// Ends a polling loop on a deadline or an abort.
class Patience {
 public:
  // Sleeps between polls once `spin` has passed.
  Patience(absl::Duration timeout, const std::atomic<bool>& aborted, absl::Duration spin = kSpin)
      : start_(MonotonicNow()), deadline_(start_ + timeout), spin_(spin), aborted_(aborted) {}

  // Yields or sleeps once; an error when the loop must end.
  absl::Status Wait() const {
    if (aborted_.load(std::memory_order_relaxed)) return absl::CancelledError("barrier aborted");
    const absl::Time now = MonotonicNow();
    if (now >= deadline_) return absl::DeadlineExceededError("a rank did not reach the barrier in time");
    if (now - start_ > spin_) absl::SleepFor(kNap);
    return absl::OkStatus();
  }

 private:
  const absl::Time start_;
  const absl::Time deadline_;
  const absl::Duration spin_;
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

class NcclBarrier final : public Barrier, public DeviceCollectives {
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
    cudaFree(device_numbers_);
    cudaFreeHost(host_numbers_);
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
    absl::Status status = Launch(
        {epoch_, step, ++call_, mine.load_tokens, mine.local_ns, mine.active, mine.rows, mine.stop_flags},
        patience);
    if (status.ok()) status = AwaitEvent(patience);
    if (!status.ok()) return Finish(status);
    return Summarise(step);
  }

  absl::Status AllGather(int64_t step, absl::Span<const float> mine, absl::Span<float> all,
                         absl::Duration timeout) override {
    if (!failure_.ok()) return failure_;
    const Patience patience(timeout, aborted_);
    ++call_;
    absl::Status status = CheckGatherSizes(world_size_, mine, all);
    if (status.ok()) status = Reserve(mine.size() + all.size());
    if (!status.ok()) return Finish(status);
    std::copy(mine.begin(), mine.end(), host_numbers_);
    float* const result = device_numbers_ + mine.size();
    const auto collective = [&] {
      return ncclAllGather(device_numbers_, result, mine.size(), ncclFloat32, comm_, stream_);
    };
    status = Exchange(mine.size(), collective, result, all, patience);
    return status.ok() ? status : Finish(status);
  }

  absl::Status ReduceScatter(int64_t step, absl::Span<const float> mine, absl::Span<float> sum,
                             absl::Duration timeout) override {
    if (!failure_.ok()) return failure_;
    const Patience patience(timeout, aborted_);
    ++call_;
    const size_t brought = static_cast<size_t>(world_size_) * sum.size();
    absl::Status status = CheckScatterSizes(rank_, world_size_, mine, sum);
    if (status.ok()) status = Reserve(brought + sum.size());
    if (!status.ok()) return Finish(status);
    // NCCL takes one term per rank and adds in its own order.
    std::fill_n(host_numbers_, brought, 0.0f);
    for (size_t i = 0; i < mine.size(); ++i) host_numbers_[i % brought] += mine[i];
    float* const result = device_numbers_ + brought;
    const auto collective = [&] {
      return ncclReduceScatter(device_numbers_, result, sum.size(), ncclFloat32, ncclSum, comm_, stream_);
    };
    status = Exchange(brought, collective, result, sum, patience);
    return status.ok() ? status : Finish(status);
  }

  DeviceCollectives* device() override { return this; }

  absl::Status QueueAllGather(const void* mine, void* all, int64_t count, void* stream,
                              absl::Duration timeout) override {
    return Queue("ncclAllGather", timeout, [&] {
      return ncclAllGather(mine, all, static_cast<size_t>(count), ncclBfloat16, comm_,
                           static_cast<cudaStream_t>(stream));
    });
  }

  absl::Status QueueReduceScatter(const float* mine, float* sum, int64_t count, void* stream,
                                  absl::Duration timeout) override {
    return Queue("ncclReduceScatter", timeout, [&] {
      return ncclReduceScatter(mine, sum, static_cast<size_t>(count), ncclFloat32, ncclSum, comm_,
                               static_cast<cudaStream_t>(stream));
    });
  }

  absl::Status Check() override {
    if (!failure_.ok()) return failure_;
    if (aborted_.load(std::memory_order_relaxed)) return Finish(absl::CancelledError("barrier aborted"));
    ncclResult_t state = ncclSuccess;
    absl::Status status = NcclStatus(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
    if (status.ok()) status = NcclStatus(state, "NCCL");
    return status.ok() ? status : Finish(status);
  }

  void Fail(const absl::Status& why) override { Finish(why).IgnoreError(); }

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

  // Ensures capacity for `count` numbers on host and device. Allocates only while batches still grow.
  absl::Status Reserve(size_t count) {
    if (count <= reserved_) return absl::OkStatus();
    reserved_ = 0;
    absl::Status status = CudaStatus(cudaFree(std::exchange(device_numbers_, nullptr)), "cudaFree");
    status.Update(CudaStatus(cudaFreeHost(std::exchange(host_numbers_, nullptr)), "cudaFreeHost"));
    status.Update(CudaStatus(cudaMalloc(&device_numbers_, count * sizeof(float)), "cudaMalloc"));
    status.Update(CudaStatus(cudaMallocHost(&host_numbers_, count * sizeof(float)), "cudaMallocHost"));
    if (status.ok()) reserved_ = count;
    return status;
  }

  // Copies the first `brought` host_numbers_ to the GPU, runs the collective, and copies the result to `out`.
  template <typename Collective>
  absl::Status Exchange(size_t brought, const Collective& collective, const float* result,
                        absl::Span<float> out, const Patience& patience) {
    absl::Status status = CudaStatus(cudaMemcpyAsync(device_numbers_, host_numbers_, brought * sizeof(float),
                                                     cudaMemcpyHostToDevice, stream_),
                                     "copy to GPU");
    if (status.ok()) status = NcclStatus(collective(), "collective");
    if (status.ok()) status = AwaitComm(patience);
    if (!status.ok()) return status;
    status = CudaStatus(
        cudaMemcpyAsync(host_numbers_, result, out.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_),
        "copy from GPU");
    status.Update(CudaStatus(cudaEventRecord(event_, stream_), "cudaEventRecord"));
    if (status.ok()) status = AwaitEvent(patience);
    if (status.ok()) std::copy_n(host_numbers_, out.size(), out.begin());
    return status;
  }

  // Queues a collective in the caller's stream.
  template <typename Collective>
  absl::Status Queue(absl::string_view what, absl::Duration timeout, const Collective& collective) {
    if (!failure_.ok()) return failure_;
    // Waits for NCCL's own thread to launch the kernel, not for peers.
    const Patience patience(timeout, aborted_, kLaunchSpin);
    ++call_;
    absl::Status status = NcclStatus(collective(), what);
    if (status.ok()) status = AwaitComm(patience);
    return status.ok() ? status : Finish(status);
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
      if (row.epoch != epoch_ || row.step != step || row.call != call_) {
        return Finish(absl::InternalError(absl::StrCat(
            "ranks disagree: rank ", rank, " is at step ", row.step, " of epoch ", row.epoch, ", call ",
            row.call, ", rank ", rank_, " at step ", step, " of epoch ", epoch_, ", call ", call_)));
      }
      if (rank > 0) Fold(ViewOf(row), view);
    }
    return view;
  }

  // Ends the communicator: after an error every rank must abort it.
  absl::Status Finish(const absl::Status& status) {
    if (failure_.ok()) failure_ = status;
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
  int64_t call_ = 0;
  // Buffers of AllGather and ReduceScatter: this rank's contribution, then its result; host_numbers_ is
  // pinned.
  size_t reserved_ = 0;
  float* device_numbers_ = nullptr;
  float* host_numbers_ = nullptr;
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
  BFIO_ASSIGN_OR_RETURN(
      auto met, barrier->AllReduce(0, SignatureContribution(group.signature), deadline - MonotonicNow()));
  if (!SameSignature(met)) return SignatureError(group.epoch);
  if (group.signature == 0) return barrier;
  // Ranks that compute together also use the other collectives, which have their own kernels and connections.
  const float mine = 0;
  float sum = 0;
  std::vector<float> all(static_cast<size_t>(group.world_size));
  absl::Status status = barrier->AllGather(0, {&mine, 1}, absl::MakeSpan(all), deadline - MonotonicNow());
  const std::vector<float> terms(static_cast<size_t>(NodeCount(group.rank, group.world_size)) * all.size(),
                                 0.0f);
  if (status.ok()) status = barrier->ReduceScatter(0, terms, {&sum, 1}, deadline - MonotonicNow());
  if (!status.ok()) return status;
  return barrier;
}

}  // namespace bfio::worker
