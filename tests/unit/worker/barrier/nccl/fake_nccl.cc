#include "tests/unit/worker/barrier/nccl/fake_nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <set>

namespace {

using bfio::testing::Fake;
using Lock = std::lock_guard<std::recursive_mutex>;
using Bytes = std::vector<unsigned char>;

// The ranks that joined with the same unique id.
struct Group {
  int ranks = 0, joined = 0;
  bool lost = false;
  // Each rank's contribution, by call and rank.
  std::map<int, std::map<int, Bytes>> calls;
};

struct Member {
  std::shared_ptr<Group> group;
  int rank = 0, device = 0;
  // Number of queued calls, and index of the first that has not ended.
  int queued = 0, at = 0;
  bool ended = false;
  int in_progress = 0;

  bool joining() const { return group->joined < group->ranks; }
  bool waits() const {
    if (joining()) return true;
    if (at == queued) return false;
    const auto call = group->calls.find(at);
    return call == group->calls.end() || static_cast<int>(call->second.size()) < group->ranks;
  }
};

thread_local int current_device = 0;

std::map<std::string, std::shared_ptr<Group>>& Groups() {
  static std::map<std::string, std::shared_ptr<Group>> groups;
  return groups;
}
std::set<cudaStream_t>& Streams() {
  static std::set<cudaStream_t> streams;
  return streams;
}
// Size, and whether the block is pinned or on a device, by address.
std::map<unsigned char*, std::pair<size_t, bool>>& Blocks() {
  static std::map<unsigned char*, std::pair<size_t, bool>> blocks;
  return blocks;
}

void Undefined(const std::string& what) {
  Fake().undefined.push_back(what);
}

// The fault that is due in this function; 0: none.
int FaultOf(const char* function) {
  const auto it = Fake().faults.find(function);
  if (it == Fake().faults.end() || it->second.calls-- > 0) return 0;
  const int result = it->second.result;
  Fake().faults.erase(it);
  return result;
}

void CheckMemory(const void* p, size_t bytes, bool pinned, const char* what) {
  const auto* const at = static_cast<const unsigned char*>(p);
  for (const auto& [begin, block] : Blocks()) {
    if (block.second == pinned && at >= begin && at + bytes <= begin + block.first) return;
  }
  Undefined(std::string(what) + ": memory that is not there");
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Member> member;
};

struct CUevent_st {
  int recorded = 0, reached = 0;
};

// An operation in a stream; returns false while it has to wait.
using Operation = std::function<bool()>;
struct CUstream_st {
  int device = 0;
  std::deque<Operation> operations;
  std::vector<std::weak_ptr<Member>> launching;
};

namespace {

// Communicators are kept after their end, so that a later use is detected.
std::vector<std::unique_ptr<ncclComm>>& Communicators() {
  static std::vector<std::unique_ptr<ncclComm>> communicators;
  return communicators;
}

void Push(cudaStream_t stream, const Member* of, Operation operation) {
  std::erase_if(stream->launching, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : stream->launching) {
    const auto member = weak.lock();
    if (member != nullptr && member.get() != of && member->in_progress > 0 && !member->ended) {
      Undefined("work behind a launch that is in progress");
    }
  }
  stream->operations.push_back(std::move(operation));
}

void RunStreams() {
  for (const cudaStream_t stream : Streams()) {
    while (!stream->operations.empty() && stream->operations.front()()) stream->operations.pop_front();
  }
}

cudaError_t Allocate(void** pointer, size_t bytes, bool pinned) {
  auto* const memory = static_cast<unsigned char*>(std::malloc(bytes == 0 ? 1 : bytes));
  std::memset(memory, 0xff, bytes);
  Blocks()[memory] = {bytes, pinned};
  ++Fake().blocks;
  *pointer = memory;
  return cudaSuccess;
}

cudaError_t Free(void* memory, bool pinned, const char* what) {
  if (memory == nullptr) return cudaSuccess;
  const auto it = Blocks().find(static_cast<unsigned char*>(memory));
  if (it == Blocks().end() || it->second.second != pinned) {
    Undefined(std::string(what) + ": memory that is not there");
    return cudaErrorInvalidValue;
  }
  // cudaFree waits for the device.
  RunStreams();
  for (const cudaStream_t stream : Streams()) {
    if (stream->device == current_device && !stream->operations.empty()) {
      Undefined(std::string(what) + " behind what may never end");
    }
  }
  Blocks().erase(it);
  --Fake().blocks;
  std::free(memory);
  return cudaSuccess;
}

Member* MemberOf(ncclComm_t comm, const char* function) {
  if (comm != nullptr && !comm->member->ended) return comm->member.get();
  Undefined(std::string(function) + " of a communicator that has ended");
  return nullptr;
}

ncclResult_t Join(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank) {
  auto& group = Groups()[std::string(id.internal, sizeof(id.internal))];
  if (group == nullptr) group = std::make_shared<Group>();
  group->ranks = ranks;
  ++group->joined;
  auto member = std::make_shared<Member>();
  member->group = group;
  member->rank = rank;
  member->device = current_device;
  *comm = Communicators().emplace_back(std::make_unique<ncclComm>(ncclComm{member})).get();
  ++Fake().communicators;
  return ncclInProgress;
}

void AddUp(const std::map<int, Bytes>& parts, size_t count, void* out) {
  std::vector<int64_t> sum(count);
  for (const auto& [rank, bytes] : parts) {
    const auto* const from = reinterpret_cast<const int64_t*>(bytes.data());
    for (size_t i = 0; i < count; ++i) sum[i] += from[i];
  }
  std::memcpy(out, sum.data(), count * sizeof(int64_t));
}

}  // namespace

namespace bfio::testing {

FakeNccl& Fake() {
  static auto* const fake = new FakeNccl;
  return *fake;
}

void ResetFake() {
  FakeNccl& fake = Fake();
  fake.devices = 8;
  fake.peers_hear = true;
  fake.launch_polls = 2;
  fake.faults.clear();
  fake.async_errors.clear();
  fake.abort_hangs = false;
  fake.unique_ids = fake.aborts = 0;
  fake.undefined.clear();
  Groups().clear();
  Communicators().clear();
}

}  // namespace bfio::testing

// --- CUDA ---

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const Lock lock(Fake().mutex);
  *count = Fake().devices;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device) {
  const Lock lock(Fake().mutex);
  current_device = device;
  return static_cast<cudaError_t>(FaultOf("cudaSetDevice"));
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "a CUDA error";
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const Lock lock(Fake().mutex);
  if (const int fault = FaultOf("cudaMalloc"); fault != 0) return static_cast<cudaError_t>(fault);
  return Allocate(pointer, bytes, false);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int) {
  const Lock lock(Fake().mutex);
  if (const int fault = FaultOf("cudaMallocHost"); fault != 0) return static_cast<cudaError_t>(fault);
  return Allocate(pointer, bytes, true);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, 0);
}

cudaError_t cudaFree(void* memory) {
  const Lock lock(Fake().mutex);
  return Free(memory, false, "cudaFree");
}

cudaError_t cudaFreeHost(void* memory) {
  const Lock lock(Fake().mutex);
  return Free(memory, true, "cudaFreeHost");
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  const Lock lock(Fake().mutex);
  if (const int fault = FaultOf("cudaStreamCreate"); fault != 0) return static_cast<cudaError_t>(fault);
  *stream = new CUstream_st{current_device, {}, {}};
  Streams().insert(*stream);
  ++Fake().streams;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(Fake().mutex);
  RunStreams();
  if (!stream->operations.empty()) Undefined("a stream is destroyed behind what may never end");
  Streams().erase(stream);
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
  const Lock lock(Fake().mutex);
  if (const int fault = FaultOf("cudaEventRecord"); fault != 0) return static_cast<cudaError_t>(fault);
  Push(stream, nullptr, [event, number = ++event->recorded] {
    event->reached = number;
    return true;
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(Fake().mutex);
  if (const int fault = FaultOf("cudaEventQuery"); fault != 0) return static_cast<cudaError_t>(fault);
  RunStreams();
  return event->reached == event->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Lock lock(Fake().mutex);
  if (const int fault = FaultOf("cudaMemcpyAsync"); fault != 0) return static_cast<cudaError_t>(fault);
  const bool in = kind == cudaMemcpyHostToDevice;
  CheckMemory(to, bytes, !in, "cudaMemcpyAsync");
  CheckMemory(from, bytes, in, "cudaMemcpyAsync");
  const auto* const source = static_cast<const unsigned char*>(from);
  Bytes queued;
  if (in) queued.assign(source, source + bytes);
  Push(stream, nullptr, [=, queued = std::move(queued)] {
    if (in && std::memcmp(source, queued.data(), bytes) != 0) Undefined("memory was changed under its copy");
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
  const Lock lock(Fake().mutex);
  if (const int fault = FaultOf("ncclGetUniqueId"); fault != 0) return static_cast<ncclResult_t>(fault);
  std::memset(id->internal, 0, sizeof(id->internal));
  const int number = ++Fake().unique_ids;
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  const Lock lock(Fake().mutex);
  if (const int fault = FaultOf("ncclCommInitRank"); fault != 0) return static_cast<ncclResult_t>(fault);
  Join(comm, ranks, id, rank);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const Lock lock(Fake().mutex);
  if (config->blocking != 0) Undefined("a communicator that blocks");
  if (const int fault = FaultOf("ncclCommInitRankConfig"); fault != 0)
    return static_cast<ncclResult_t>(fault);
  return Join(comm, ranks, id, rank);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Lock lock(Fake().mutex);
  Member* const member = MemberOf(comm, "ncclCommGetAsyncError");
  if (member == nullptr) return ncclInvalidArgument;
  if (const int fault = FaultOf("ncclCommGetAsyncError"); fault != 0) return static_cast<ncclResult_t>(fault);
  RunStreams();
  *error = ncclSuccess;
  if (const auto it = Fake().async_errors.find(member->device); it != Fake().async_errors.end()) {
    *error = static_cast<ncclResult_t>(it->second);
  } else if (member->group->lost && member->waits() && Fake().peers_hear) {
    *error = ncclRemoteError;
  } else if (member->joining() || member->in_progress > 0) {
    if (!member->joining()) --member->in_progress;
    *error = ncclInProgress;
  }
  return ncclSuccess;
}

static ncclResult_t End(ncclComm_t comm, const char* function) {
  Member* const member = MemberOf(comm, function);
  if (member == nullptr) return ncclInvalidArgument;
  member->ended = member->group->lost = true;
  --Fake().communicators;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  while (Fake().abort_hangs) usleep(1000);
  const Lock lock(Fake().mutex);
  ++Fake().aborts;
  return End(comm, "ncclCommAbort");
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Lock lock(Fake().mutex);
  return End(comm, "ncclCommDestroy");
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream) {
  constexpr char kFunction[] = "ncclAllReduce";
  const Lock lock(Fake().mutex);
  if (MemberOf(comm, kFunction) == nullptr) return ncclInvalidArgument;
  const std::shared_ptr<Member> member = comm->member;
  if (type != ncclInt64) Undefined("a sum of another type");
  if (member->joining() || member->in_progress > 0) Undefined("ncclAllReduce before its turn");
  if (const int fault = FaultOf(kFunction); fault != 0) return static_cast<ncclResult_t>(fault);
  const size_t bytes = count * sizeof(int64_t);
  CheckMemory(send, bytes, false, kFunction);
  CheckMemory(receive, bytes, false, kFunction);
  const int call = member->queued++;
  member->in_progress = Fake().launch_polls;
  stream->launching.push_back(member);
  Push(stream, member.get(), [=] {
    if (member->ended) {
      std::memset(receive, 0xff, bytes);
      return true;
    }
    auto& parts = member->group->calls[call];
    const auto* const from = static_cast<const unsigned char*>(send);
    if (!parts.contains(member->rank)) parts[member->rank] = Bytes(from, from + bytes);
    if (static_cast<int>(parts.size()) < member->group->ranks) return false;
    for (const auto& [rank, part] : parts) {
      if (part.size() == bytes) continue;
      Undefined("ncclAllReduce of unlike sizes");
      return false;
    }
    AddUp(parts, count, receive);
    member->at = call + 1;
    return true;
  });
  return ncclInProgress;
}

}  // extern "C"
