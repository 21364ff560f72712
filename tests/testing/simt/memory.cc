#include "simt/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "simt/machine.h"

namespace simt {
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
