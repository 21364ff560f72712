// A stack and an execution context, on which the emulator runs one thread of a block.
//
// Purpose: Boost.Context's switch, with the calls that address and thread sanitizers need to follow it. A
// fiber that is abandoned before its end is simply started again; objects on its stack are not destroyed, so
// kernels hold trivial objects only. Threads: as machine.h.
#pragma once

#include <boost/context/detail/fcontext.hpp>

namespace simt {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next Resume begins at `entry`, which must never return.
  void Start(void (*entry)());
  // Called outside of all fibers: runs the fiber until it suspends.
  void Resume();
  // Called within the fiber: returns to the code that called Resume.
  void Suspend();

 private:
  static void Main(boost::context::detail::transfer_t from);

  unsigned char* stack_;
  boost::context::detail::fcontext_t context_ = nullptr;
  boost::context::detail::fcontext_t resumer_ = nullptr;
  void (*entry_)() = nullptr;
  // For the sanitizers.
  void* own_handle_ = nullptr;
  void* resumer_handle_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
  int starts_ = 0;
};

}  // namespace simt
