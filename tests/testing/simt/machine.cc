#include "simt/machine.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "simt/fiber.h"
#include "simt/shared_memory.h"

namespace simt {
namespace {

constexpr int kMaxThreads = 1024;

// The asynchronous copies of one thread. They take effect when the thread waits for them, and not before.
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

enum class State { kReady, kAtWarp, kAtBlock, kDone };

struct Thread {
  Fiber fiber;
  Place place;
  State state = State::kReady;
  const char* waits_in = "";
  Where where;
  void* argument = nullptr;
  AsyncCopies copies;
};

struct Machine {
  Order order = Order::kForward;
  Grid grid;
  const std::function<void()>* kernel = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;
  // The thread that is running; null if none is.
  Thread* self = nullptr;
  std::string error;
  // Number of lanes that have reached their warp's current meeting, by warp.
  std::array<int, kMaxThreads / kWarpLanes> met{};
  SharedMemory shared;
};

Machine& M() {
  static auto* machine = new Machine;
  return *machine;
}

std::string Name(const Where& where) {
  std::string file = where.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(where.line());
}

std::string Describe(const Thread& thread) {
  const std::string name = "thread " + std::to_string(thread.place.thread);
  switch (thread.state) {
    case State::kReady: return name + " runs";
    case State::kDone: return name + " has exited";
    default: return name + " waits in " + thread.waits_in + " at " + Name(thread.where);
  }
}

void SuspendSelf() {
  Thread* self = M().self;
  self->fiber.Suspend();
}

// Ends the launch after an error was set. Objects on the thread's stack are not destroyed, so SetError's
// caller must build the error text in a temporary that is destroyed before this call.
[[noreturn]] void Abandon() {
  SuspendSelf();
  std::abort();  // never resumed
}

void SetError(const std::string& message) {
  Machine& m = M();
  m.error = "thread " + std::to_string(m.self->place.thread) + ": " + message;
}

bool SamePlace(const Where& a, const Where& b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

void ThreadMain() {
  (*M().kernel)();
  Thread* self = M().self;
  if (self->copies.Pending()) Fail("the thread exits before it has waited for its async copies");
  self->state = State::kDone;
  SuspendSelf();
}

// Runs the warp's lanes until each of them is done or waits for threads of other warps.
void RunWarp(int warp) {
  Machine& m = M();
  bool progress = true;
  while (progress) {
    progress = false;
    for (int i = 0; i < kWarpLanes; ++i) {
      const int lane = m.order == Order::kForward ? i : kWarpLanes - 1 - i;
      Thread* thread = m.threads[warp * kWarpLanes + lane].get();
      if (thread->state != State::kReady) continue;
      m.self = thread;
      thread->fiber.Resume();
      m.self = nullptr;
      if (!m.error.empty()) return;
      progress = true;
    }
  }
  const Thread* at_warp = nullptr;
  const Thread* elsewhere = nullptr;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const Thread* thread = m.threads[warp * kWarpLanes + lane].get();
    (thread->state == State::kAtWarp ? at_warp : elsewhere) = thread;
  }
  if (at_warp != nullptr) m.error = "divergent warp: " + Describe(*at_warp) + ", but " + Describe(*elsewhere);
}

// Called when all threads wait at a barrier or are done: releases them. Returns false when all are done.
bool ReleaseBarrier() {
  Machine& m = M();
  const Thread& first = *m.threads[0];
  for (int i = 1; i < m.grid.threads; ++i) {
    const Thread& other = *m.threads[i];
    if (other.state != first.state ||
        (first.state == State::kAtBlock && !SamePlace(first.where, other.where))) {
      m.error = "divergent barrier: " + Describe(first) + ", but " + Describe(other);
      return false;
    }
  }
  if (first.state == State::kDone) return false;
  for (int i = 0; i < m.grid.threads; ++i) m.threads[i]->state = State::kReady;
  return true;
}

void RunBlock(int block_x, int block_y) {
  Machine& m = M();
  m.met.fill(0);
  m.shared.Begin(m.grid.shared_bytes);
  for (int i = 0; i < m.grid.threads; ++i) {
    Thread& thread = *m.threads[i];
    thread.place = {i, block_x, block_y};
    thread.state = State::kReady;
    thread.copies.Forget();
    thread.fiber.Start(&ThreadMain);
  }
  const int warps = m.grid.threads / kWarpLanes;
  do {
    for (int i = 0; i < warps; ++i) {
      RunWarp(m.order == Order::kForward ? i : warps - 1 - i);
      if (!m.error.empty()) break;
    }
  } while (m.error.empty() && ReleaseBarrier());
  const char* damage = m.shared.Damage();
  if (m.error.empty() && damage != nullptr) m.error = damage;
  if (!m.error.empty()) {
    m.error = "block (" + std::to_string(block_x) + ", " + std::to_string(block_y) + "): " + m.error;
  }
}

// Address at which the kernel accessed a protected page.
const void* fault_address = nullptr;

void FailAtFault() {
  const GuardedMemory* owner = GuardedMemory::FindOwner(fault_address);
  const auto distance = static_cast<const unsigned char*>(fault_address) - owner->data();
  SetError("access outside of buffer '" + owner->name() + "', at byte " + std::to_string(distance) + " of " +
           std::to_string(owner->bytes()));
  Abandon();
}

// Handles an access to the protected pages around a buffer. Within a kernel the launch fails; elsewhere the
// process ends as usual. The signal handler returns to FailAtFault instead of the faulting instruction.
void OnSegmentationFault(int, siginfo_t* info, void* context) {
  if (M().self == nullptr || GuardedMemory::FindOwner(info->si_addr) == nullptr) {
    signal(SIGSEGV, SIG_DFL);
    return;
  }
  fault_address = info->si_addr;
#if defined(__x86_64__)
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  // Below the red zone, and aligned as after a call.
  registers[REG_RSP] = ((registers[REG_RSP] - 128) & ~15LL) - 8;
  registers[REG_RIP] = reinterpret_cast<greg_t>(&FailAtFault);
#else
  FailAtFault();
#endif
}

}  // namespace

void SetOrder(Order order) {
  M().order = order;
}

std::string Run(const Grid& grid, const std::function<void()>& kernel) {
  Machine& m = M();
  if (grid.threads <= 0 || grid.threads > kMaxThreads || grid.threads % kWarpLanes != 0) {
    return "a block must have a multiple of 32 threads, at most 1024";
  }
  if (grid.blocks_x <= 0 || grid.blocks_y <= 0) return "an empty grid";
  if (grid.shared_bytes < 0 || grid.shared_bytes > kMaxSharedBytes) return "too much shared memory";
  m.grid = grid;
  m.kernel = &kernel;
  m.error.clear();
  while (static_cast<int>(m.threads.size()) < grid.threads) m.threads.push_back(std::make_unique<Thread>());
  struct sigaction action = {}, before = {};
  action.sa_sigaction = &OnSegmentationFault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &before);
  for (int y = 0; y < grid.blocks_y && m.error.empty(); ++y) {
    for (int x = 0; x < grid.blocks_x && m.error.empty(); ++x) RunBlock(x, y);
  }
  sigaction(SIGSEGV, &before, nullptr);
  const GuardedMemory* damaged = GuardedMemory::FindDamaged();
  if (m.error.empty() && damaged != nullptr) m.error = "a write next to buffer '" + damaged->name() + "'";
  return m.error;
}

const Place& Here() {
  return M().self->place;
}
const Grid& CurrentGrid() {
  return M().grid;
}

void Fail(const char* message) {
  SetError(message);
  Abandon();
}

void BlockBarrier(const Where& where) {
  Thread* self = M().self;
  self->state = State::kAtBlock;
  self->waits_in = "SyncBlock";
  self->where = where;
  SuspendSelf();
}

void WarpCollective(const char* name, void (*operation)(void* const*), void* argument, const Where& where) {
  Machine& m = M();
  Thread* self = m.self;
  const int warp = self->place.thread / kWarpLanes;
  self->state = State::kAtWarp;
  self->waits_in = name;
  self->where = where;
  self->argument = argument;
  if (++m.met[warp] < kWarpLanes) {
    SuspendSelf();
    return;
  }
  m.met[warp] = 0;
  void* arguments[kWarpLanes];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    Thread* other = m.threads[warp * kWarpLanes + lane].get();
    if (std::strcmp(other->waits_in, name) != 0 || !SamePlace(other->where, where)) {
      SetError("divergent warp: " + Describe(*self) + ", but " + Describe(*other));
      Abandon();
    }
    arguments[lane] = other->argument;
    other->state = State::kReady;
  }
  operation(arguments);
}

unsigned char* DynamicShared() {
  return M().shared.dynamic();
}

void* StaticShared(const void* key, size_t bytes, size_t alignment) {
  void* array = M().shared.StaticArray(key, bytes, alignment);
  if (array == nullptr) Fail("too much static shared memory");
  return array;
}

void CopyAsync(void* shared, const void* global, size_t bytes, bool valid) {
  CheckShared("CopyAsync", shared, bytes);
  if (valid && (reinterpret_cast<uintptr_t>(global) % bytes != 0 ||
                GuardedMemory::FindContaining(global, bytes) == nullptr)) {
    Fail("CopyAsync from misaligned memory or from outside of all buffers");
  }
  std::memset(shared, kPoison, bytes);
  M().self->copies.Add(shared, valid ? global : nullptr, bytes);
}

void CommitAsync() {
  M().self->copies.Commit();
}
void WaitAsync(int newest) {
  M().self->copies.Wait(newest);
}

void CheckShared(const char* what, const void* p, size_t bytes) {
  const bool aligned = reinterpret_cast<uintptr_t>(p) % bytes == 0;
  if (aligned && M().shared.Contains(p, bytes)) return;
  SetError(std::string(what) + (aligned ? ": outside of shared memory" : ": misaligned address"));
  Abandon();
}

void CheckAccess(const char* what, const void* p, size_t bytes) {
  const bool aligned = reinterpret_cast<uintptr_t>(p) % bytes == 0;
  if (aligned && (M().shared.Contains(p, bytes) || GuardedMemory::FindContaining(p, bytes) != nullptr))
    return;
  SetError(std::string(what) +
           (aligned ? ": outside of shared memory and of all buffers" : ": misaligned address"));
  Abandon();
}

namespace {

constexpr size_t kPage = 4096;
// Size of the protected pages on either side: an index that is wrong by less than this is detected.
constexpr size_t kGuard = 16 * kPage;
constexpr unsigned char kSlack = 0xa5;

std::vector<const GuardedMemory*>& Buffers() {
  static std::vector<const GuardedMemory*> buffers;
  return buffers;
}

uintptr_t Address(const void* p) {
  return reinterpret_cast<uintptr_t>(p);
}

}  // namespace

GuardedMemory::GuardedMemory(std::string name, size_t bytes) : name_(std::move(name)), bytes_(bytes) {
  const size_t capacity = (bytes + kPage - 1) / kPage * kPage;
  mapped_bytes_ = capacity + 2 * kGuard;
  void* mapping = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) std::abort();
  mapping_ = static_cast<unsigned char*>(mapping);
  unsigned char* start = mapping_ + kGuard;
  if (capacity > 0 && mprotect(start, capacity, PROT_READ | PROT_WRITE) != 0) std::abort();
  data_ = start + capacity - (bytes + 15) / 16 * 16;
  std::memset(start, kSlack, capacity);
  std::memset(data_, kPoison, bytes);
  Buffers().push_back(this);
}

GuardedMemory::~GuardedMemory() {
  Buffers().erase(std::find(Buffers().begin(), Buffers().end(), this));
  munmap(mapping_, mapped_bytes_);
}

bool GuardedMemory::Contains(const void* p, size_t bytes) const {
  return Address(p) >= Address(data_) && Address(p) + bytes <= Address(data_) + bytes_;
}

bool GuardedMemory::Owns(const void* p) const {
  return Address(p) >= Address(mapping_) && Address(p) < Address(mapping_) + mapped_bytes_;
}

bool GuardedMemory::SlackIntact() const {
  auto intact = [](const unsigned char* from, const unsigned char* to) {
    return std::all_of(from, to, [](unsigned char c) { return c == kSlack; });
  };
  return intact(mapping_ + kGuard, data_) && intact(data_ + bytes_, mapping_ + mapped_bytes_ - kGuard);
}

const GuardedMemory* GuardedMemory::FindContaining(const void* p, size_t bytes) {
  // Most accesses are to the same buffer as the previous one.
  static const GuardedMemory* last = nullptr;
  for (const GuardedMemory* buffer : Buffers()) {
    if (buffer == last && buffer->Contains(p, bytes)) return last;
  }
  for (const GuardedMemory* buffer : Buffers()) {
    if (buffer->Contains(p, bytes)) return last = buffer;
  }
  return nullptr;
}

const GuardedMemory* GuardedMemory::FindOwner(const void* p) {
  for (const GuardedMemory* buffer : Buffers()) {
    if (buffer->Owns(p)) return buffer;
  }
  return nullptr;
}

const GuardedMemory* GuardedMemory::FindDamaged() {
  for (const GuardedMemory* buffer : Buffers()) {
    if (!buffer->SlackIntact()) return buffer;
  }
  return nullptr;
}

}  // namespace simt
