#include "simt/fiber.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(BFIO_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace simt {
namespace {

constexpr size_t kStackGuard = 4096;
// Pages that are never accessed use no memory.
constexpr size_t kStack = 256 * 1024;
#if defined(BFIO_TSAN)
constexpr int kStartsOfAHandle = 1000;
#endif

}  // namespace

Fiber::Fiber() {
  void* mapping = mmap(nullptr, kStackGuard + kStack, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (mapping == MAP_FAILED || mprotect(mapping, kStackGuard, PROT_NONE) != 0) std::abort();
  stack_ = static_cast<unsigned char*>(mapping) + kStackGuard;
#if defined(BFIO_TSAN)
  own_handle_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(BFIO_TSAN)
  __tsan_destroy_fiber(own_handle_);
#endif
  munmap(stack_ - kStackGuard, kStackGuard + kStack);
}

void Fiber::Start(void (*entry)()) {
  entry_ = entry;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStack);
  own_handle_ = nullptr;
#elif defined(BFIO_TSAN)
  // The handle is replaced from time to time: an abandoned run never returns from its calls, and
  // ThreadSanitizer's stack of calls holds 64 Ki entries.
  if (++starts_ % kStartsOfAHandle == 0) {
    __tsan_destroy_fiber(own_handle_);
    own_handle_ = __tsan_create_fiber(0);
  }
#endif
  context_ = boost::context::detail::make_fcontext(stack_ + kStack, kStack, &Fiber::Main);
}

void Fiber::Resume() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&resumer_handle_, stack_, kStack);
#elif defined(BFIO_TSAN)
  resumer_handle_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(own_handle_, 0);
#endif
  const auto back = boost::context::detail::jump_fcontext(context_, this);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(resumer_handle_, nullptr, nullptr);
#endif
  context_ = back.fctx;
}

void Fiber::Suspend() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&own_handle_, resumer_stack_, resumer_stack_bytes_);
#elif defined(BFIO_TSAN)
  __tsan_switch_to_fiber(resumer_handle_, 0);
#endif
  const auto from = boost::context::detail::jump_fcontext(resumer_, nullptr);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(own_handle_, &resumer_stack_, &resumer_stack_bytes_);
#endif
  resumer_ = from.fctx;
}

void Fiber::Main(boost::context::detail::transfer_t from) {
  auto* fiber = static_cast<Fiber*>(from.data);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &fiber->resumer_stack_, &fiber->resumer_stack_bytes_);
#endif
  fiber->resumer_ = from.fctx;
  fiber->entry_();
  std::abort();
}

}  // namespace simt
