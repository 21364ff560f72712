// Declares gRPC's synchronisation to ThreadSanitizer. GRPC runs a callback after the operation that caused
// it, and OnDone after all other callbacks; data written by one may be read by the next without a lock. The
// distribution's gRPC is not instrumented, so that order is invisible to ThreadSanitizer, which would report
// a race. Reactors therefore mark where an object is passed to gRPC and where it comes back. A mark is
// correct only where gRPC guarantees the order; elsewhere it would hide a race. No effect in other builds.
// Threads: any.
#pragma once

#ifdef BFIO_TSAN
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace bfio {

// Call right before an operation is started, or before a reactor is returned to gRPC.
inline void GrpcHandOver([[maybe_unused]] const void* reactor) {
#ifdef BFIO_TSAN
  __tsan_release(const_cast<void*>(reactor));
#endif
}

// Call first in OnDone.
inline void GrpcTakeOver([[maybe_unused]] const void* reactor) {
#ifdef BFIO_TSAN
  __tsan_acquire(const_cast<void*>(reactor));
#endif
}

// Declare first in every other callback; OnDone comes after its end.
class GrpcReaction {
 public:
  explicit GrpcReaction(const void* reactor) : reactor_(reactor) { GrpcTakeOver(reactor_); }
  GrpcReaction(const GrpcReaction&) = delete;
  GrpcReaction& operator=(const GrpcReaction&) = delete;
  ~GrpcReaction() { GrpcHandOver(reactor_); }

 private:
  const void* const reactor_;
};

}  // namespace bfio
