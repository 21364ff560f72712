// Declares gRPC's synchronisation to ThreadSanitizer.
//
// Purpose: gRPC runs a reaction after the operation that caused it, and OnDone after all other reactions;
// what one of them wrote the next may read without a lock. The distribution's gRPC is not instrumented, so
// ThreadSanitizer cannot see that order and would call it a race. Reactors therefore say where an object goes
// to gRPC and where it comes back; the order must really be gRPC's promise, or a race is hidden. Nothing in
// other builds. Threads: any.
#ifndef BFIO_COMMON_NET_TSAN_EDGE_H_
#define BFIO_COMMON_NET_TSAN_EDGE_H_

#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace bfio {

// Right before an operation is started, or before a reactor is returned to gRPC.
inline void GrpcHandOver([[maybe_unused]] const void* reactor) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(const_cast<void*>(reactor));
#endif
}

// First thing in OnDone.
inline void GrpcTakeOver([[maybe_unused]] const void* reactor) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(const_cast<void*>(reactor));
#endif
}

// First thing in each other reaction; OnDone comes after its end.
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

#endif  // BFIO_COMMON_NET_TSAN_EDGE_H_
