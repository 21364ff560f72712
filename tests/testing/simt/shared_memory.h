// The shared memory of the running block.
//
// Purpose: dynamic memory first, then static arrays in the order of first use, each followed by bytes that no
// thread may write. All of it is filled with poison when a block begins (machine.h). Threads: as machine.h.
#ifndef BFIO_TESTS_TESTING_SIMT_SHARED_MEMORY_H_
#define BFIO_TESTS_TESTING_SIMT_SHARED_MEMORY_H_

#include <cstddef>
#include <vector>

namespace simt {

class SharedMemory {
 public:
  SharedMemory();

  // Begins another block, with this much dynamic memory. REQUIRES: dynamic_bytes <= kMaxSharedBytes.
  void Begin(size_t dynamic_bytes);

  unsigned char* dynamic() { return bytes_; }
  // The array that belongs to `key`; nullptr when it does not fit.
  void* StaticArray(const void* key, size_t bytes, size_t alignment);
  bool Contains(const void* p, size_t bytes) const;
  // Describes a write to forbidden bytes; nullptr: none.
  const char* Damage() const;

 private:
  struct Array {
    // Null: dynamic memory.
    const void* key;
    size_t offset;
    size_t bytes;
  };

  void Add(const void* key, size_t offset, size_t bytes);

  std::vector<unsigned char> storage_;
  // Within storage_, aligned to 1024.
  unsigned char* bytes_;
  size_t size_;
  std::vector<Array> arrays_;
  size_t used_ = 0;
};

}  // namespace simt

#endif  // BFIO_TESTS_TESTING_SIMT_SHARED_MEMORY_H_
