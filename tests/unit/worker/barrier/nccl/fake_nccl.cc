#include "tests/unit/worker/barrier/nccl/fake_nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <set>

namespace {

using bfio::testing::Fake;
using Lock = std::lock_guard<std::recursive_mutex>;

// The ranks that joined with the same unique id.
struct Group {
  int ranks = 0, joined = 0;
  bool lost = false;
  // Each rank's contribution, by call and rank.
  std::map<int, std::map<int, std::vector<int64_t>>> calls;
};

struct Member {
  std::shared_ptr<Group> group;
  int rank = 0;
  // Number of queued calls, and index of the first that has not ended.
  int queued = 0, at = 0;
  bool ended = false;
  int in_progress = 0;

  bool joining() const { return group->joined < group->ranks; }
  bool waits() const {
    return joining() || (at < queued && static_cast<int>(group->calls[at].size()) < group->ranks);
  }
};

thread_local int current_device = 0;
std::map<std::string, std::shared_ptr<Group>> groups;
std::set<cudaStream_t> streams;

void Undefined(const std::string& what) {
  Fake().undefined.push_back(what);
}

template <typename Result>
Result FaultOf(const char* function) {
  const auto it = Fake().faults.find(function);
  if (it == Fake().faults.end()) return Result{};
  const auto result = static_cast<Result>(it->second);
  Fake().faults.erase(it);
  return result;
}

// Begins a function: under the lock, it returns the fault that is due.
#define BFIO_FAKE(Result, function)                                      \
  const Lock lock(Fake().mutex);                                         \
  if (const auto fault = FaultOf<Result>(function); fault != Result{}) { \
    return fault;                                                        \
  }

}  // namespace

struct ncclComm {
  std::shared_ptr<Member> member;
};

struct CUevent_st {
  int recorded = 0, reached = 0;
};

struct CUstream_st {
  int device = 0;
  // Each returns false while it has to wait.
  std::deque<std::function<bool()>> operations;
  std::vector<std::weak_ptr<Member>> launching;
};

namespace {

// Communicators are kept after their end, so that a later use is detected.
std::vector<std::unique_ptr<ncclComm>> communicators;

void Push(cudaStream_t stream, const Member* of, std::function<bool()> operation) {
  std::erase_if(stream->launching, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : stream->launching) {
    const auto member = weak.lock();
    if (member.get() != of && member->in_progress > 0 && !member->ended)
      Undefined("work behind a launch that is in progress");
  }
  stream->operations.push_back(std::move(operation));
}

void RunStreams() {
  for (const cudaStream_t stream : streams) {
    while (!stream->operations.empty() && stream->operations.front()()) stream->operations.pop_front();
  }
}

cudaError_t Allocate(void** pointer, size_t bytes) {
  ++Fake().blocks;
  *pointer = std::malloc(bytes);
  std::memset(*pointer, 0xff, bytes);
  return cudaSuccess;
}

cudaError_t Free(void* memory, const char* what) {
  const Lock lock(Fake().mutex);
  if (memory == nullptr) return cudaSuccess;
  RunStreams();  // it waits for the device
  for (const cudaStream_t stream : streams) {
    if (stream->device == current_device && !stream->operations.empty())
      Undefined(std::string(what) + " behind what may never end");
  }
  --Fake().blocks;
  std::free(memory);
  return cudaSuccess;
}

Member* MemberOf(ncclComm_t comm, const char* function) {
  if (comm != nullptr && !comm->member->ended) return comm->member.get();
  Undefined(std::string(function) + " of a communicator that has ended");
  return nullptr;
}

void Join(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank) {
  auto& group = groups[std::string(id.internal, sizeof(id.internal))];
  if (group == nullptr) group = std::make_shared<Group>();
  group->ranks = ranks;
  ++group->joined;
  const auto member = std::make_shared<Member>(Member{group, rank});
  *comm = communicators.emplace_back(std::make_unique<ncclComm>(ncclComm{member})).get();
  ++Fake().communicators;
}

ncclResult_t End(ncclComm_t comm, const char* function) {
  const Lock lock(Fake().mutex);
  Member* const member = MemberOf(comm, function);
  if (member == nullptr) return ncclInvalidArgument;
  member->ended = member->group->lost = true;
  --Fake().communicators;
  return ncclSuccess;
}

}  // namespace

namespace bfio::testing {

FakeNccl& Fake() {
  static auto* const fake = new FakeNccl;
  return *fake;
}

void ResetFake() {
  FakeNccl& fake = Fake();
  fake.devices = 64;
  fake.peers_hear = true;
  fake.launch_polls = 2;
  fake.faults.clear();
  fake.abort_hangs = false;
  fake.unique_ids = fake.aborts = 0;
  fake.undefined.clear();
  groups.clear();
  communicators.clear();
}

}  // namespace bfio::testing

extern "C" {

// --- CUDA ---

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Fake().devices;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
  BFIO_FAKE(cudaError_t, "cudaSetDevice");
  current_device = device;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "a CUDA error";
}
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  BFIO_FAKE(cudaError_t, "cudaMalloc");
  return Allocate(pointer, bytes);
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int) {
  BFIO_FAKE(cudaError_t, "cudaMallocHost");
  return Allocate(pointer, bytes);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, 0);
}
cudaError_t cudaFree(void* memory) {
  return Free(memory, "cudaFree");
}
cudaError_t cudaFreeHost(void* memory) {
  return Free(memory, "cudaFreeHost");
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  BFIO_FAKE(cudaError_t, "cudaStreamCreate");
  streams.insert(*stream = new CUstream_st{current_device, {}, {}});
  ++Fake().streams;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(Fake().mutex);
  RunStreams();
  if (!stream->operations.empty()) Undefined("a stream is destroyed behind what may never end");
  streams.erase(stream);
  --Fake().streams;
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  const Lock lock(Fake().mutex);
  *event = new CUevent_st;
  ++Fake().events;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(Fake().mutex);
  RunStreams();
  --Fake().events;
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  BFIO_FAKE(cudaError_t, "cudaEventRecord");
  Push(stream, nullptr, [event, number = ++event->recorded] {
    event->reached = number;
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  BFIO_FAKE(cudaError_t, "cudaEventQuery");
  RunStreams();
  return event->reached == event->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  BFIO_FAKE(cudaError_t, "cudaMemcpyAsync");
  const auto* const source = static_cast<const unsigned char*>(from);
  std::vector<unsigned char> queued;
  if (kind == cudaMemcpyHostToDevice) queued.assign(source, source + bytes);
  Push(stream, nullptr, [=] {
    if (!std::equal(queued.begin(), queued.end(), source)) Undefined("memory was changed under its copy");
    std::memcpy(to, source, bytes);
    return true;
  });
  return cudaSuccess;
}

// --- NCCL ---

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error" : "an NCCL error";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  BFIO_FAKE(ncclResult_t, "ncclGetUniqueId");
  std::memset(id->internal, 0, sizeof(id->internal));
  const int number = ++Fake().unique_ids;
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  BFIO_FAKE(ncclResult_t, "ncclCommInitRank");
  Join(comm, ranks, id, rank);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  BFIO_FAKE(ncclResult_t, "ncclCommInitRankConfig");
  if (config->blocking != 0) Undefined("a communicator that blocks");
  Join(comm, ranks, id, rank);
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  BFIO_FAKE(ncclResult_t, "ncclCommGetAsyncError");
  Member* const member = MemberOf(comm, "ncclCommGetAsyncError");
  if (member == nullptr) return ncclInvalidArgument;
  RunStreams();
  *error = ncclSuccess;
  if (member->group->lost && member->waits() && Fake().peers_hear) {
    *error = ncclRemoteError;
  } else if (member->joining() || member->in_progress > 0) {
    if (!member->joining()) --member->in_progress;
    *error = ncclInProgress;
  }
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  while (Fake().abort_hangs) usleep(1000);
  {
    const Lock lock(Fake().mutex);
    ++Fake().aborts;
  }
  return End(comm, "ncclCommAbort");
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return End(comm, "ncclCommDestroy");
}
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream) {
  BFIO_FAKE(ncclResult_t, "ncclAllReduce");
  if (MemberOf(comm, "ncclAllReduce") == nullptr) return ncclInvalidArgument;
  const std::shared_ptr<Member> member = comm->member;
  if (type != ncclInt64) Undefined("a sum of another type");
  if (member->joining() || member->in_progress > 0) Undefined("ncclAllReduce before its turn");
  const int call = member->queued++;
  member->in_progress = Fake().launch_polls;
  stream->launching.push_back(member);
  Push(stream, member.get(), [=] {
    std::vector<int64_t> sum(count, -1);
    if (!member->ended) {
      auto& parts = member->group->calls[call];
      const auto* const from = static_cast<const int64_t*>(send);
      if (!parts.contains(member->rank)) parts[member->rank].assign(from, from + count);
      if (static_cast<int>(parts.size()) < member->group->ranks) return false;
      sum.assign(count, 0);
      for (const auto& [rank, part] : parts) {
        if (part.size() != count) Undefined("ncclAllReduce of unlike sizes");
        for (size_t i = 0; i < std::min(count, part.size()); ++i) sum[i] += part[i];
      }
      member->at = call + 1;
    }
    std::memcpy(receive, sum.data(), count * sizeof(int64_t));
    return true;
  });
  return ncclInProgress;
}

}  // extern "C"
