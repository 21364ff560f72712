// A stack and a place in a program: what the emulator runs a thread of a block on.
//
// Purpose: Boost.Context's bare switch, with the calls that address and thread sanitizers need to follow it.
// A fiber that is abandoned half way is simply started again; what is on its stack is not destroyed, so
// kernels hold trivial objects only. Threads: as machine.h.
#ifndef BFIO_TESTS_TESTING_SIMT_FIBER_H_
#define BFIO_TESTS_TESTING_SIMT_FIBER_H_

#include <boost/context/detail/fcontext.hpp>

namespace simt {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes it begin at `entry` when next resumed; entry must never return.
  void Start(void (*entry)());
  // From outside of all fibers: runs it until it suspends.
  void Resume();
  // From within: back to the resuming code.
  void Suspend();

 private:
  static void Main(boost::context::detail::transfer_t from);

  unsigned char* stack_;
  boost::context::detail::fcontext_t context_ = nullptr;
  boost::context::detail::fcontext_t resumer_ = nullptr;
  void (*entry_)() = nullptr;
  // Kept for the sanitizers.
  void* own_handle_ = nullptr;
  void* resumer_handle_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
  int starts_ = 0;
};

}  // namespace simt

#endif  // BFIO_TESTS_TESTING_SIMT_FIBER_H_
