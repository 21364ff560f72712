// The functions of worker/engine/cuda/kernels/device.h under the emulator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "simt/fragments.h"
#include "simt/machine.h"
#include "simt/stream.h"
#include "worker/engine/cuda/kernels/device_types.h"

#define BFIO_KERNEL(threads, blocks) inline void
#define BFIO_DEVICE inline
#define BFIO_UNROLL
#define BFIO_UNROLL_BY(n)
#define BFIO_SHARED_ARRAY(T, name, n) \
  static const char name##_key = 0;   \
  T(&name)                            \
  [n] = *static_cast<T(*)[n]>(        \
      ::simt::StaticShared(&name##_key, sizeof(T) * (n), alignof(T) < 16 ? 16 : alignof(T)))
#define BFIO_DYNAMIC_SHARED(name) unsigned char* const name = ::simt::DynamicShared()

namespace bfio::worker::gpu {

using simt::Where;

inline int ThreadIndex() {
  return simt::Here().thread;
}
inline int BlockThreads() {
  return simt::CurrentGrid().threads;
}
inline int BlockIndex() {
  return simt::Here().block_x;
}
inline int BlockIndexY() {
  return simt::Here().block_y;
}
inline int GridBlocks() {
  return simt::CurrentGrid().blocks_x;
}
inline int LaneIndex() {
  return ThreadIndex() % kWarpLanes;
}
inline int WarpIndex() {
  return ThreadIndex() / kWarpLanes;
}

inline void SyncBlock(const Where& where = Where::current()) {
  simt::BlockBarrier(where);
}
inline void SyncWarp(const Where& where = Where::current()) {
  simt::WarpCollective(
      "SyncWarp", [](void* const*) {}, nullptr, where);
}

// Arguments and result of one lane in a shuffle.
template <class T>
struct ShuffleArgument {
  T in;
  int parameter;
  T out;
};

template <class T, class Source>
T ShuffleBy(const char* name, T value, int parameter, Source, const Where& where) {
  static_assert(sizeof(T) == 4);
  ShuffleArgument<T> argument{value, parameter, value};
  simt::WarpCollective(
      name,
      [](void* const* arguments) {
        for (int lane = 0; lane < kWarpLanes; ++lane) {
          auto& own = *static_cast<ShuffleArgument<T>*>(arguments[lane]);
          own.out = static_cast<ShuffleArgument<T>*>(arguments[Source()(lane, own.parameter)])->in;
        }
      },
      &argument, where);
  return argument.out;
}

template <class T>
T ShuffleXor(T value, int mask, const Where& where = Where::current()) {
  auto source = [](int lane, int m) { return (lane ^ m) % kWarpLanes; };
  return ShuffleBy("ShuffleXor", value, mask, source, where);
}
template <class T>
T ShuffleDown(T value, int lanes, const Where& where = Where::current()) {
  auto source = [](int lane, int n) { return lane + n < kWarpLanes ? lane + n : lane; };
  return ShuffleBy("ShuffleDown", value, lanes, source, where);
}
template <class T>
T Shuffle(T value, int lane, const Where& where = Where::current()) {
  auto source = [](int, int from) { return from % kWarpLanes; };
  return ShuffleBy("Shuffle", value, lane, source, where);
}

inline uint32_t Ballot(bool predicate, const Where& where = Where::current()) {
  ShuffleArgument<uint32_t> argument{predicate, 0, 0};
  simt::WarpCollective(
      "Ballot",
      [](void* const* arguments) {
        uint32_t bits = 0;
        for (int lane = 0; lane < kWarpLanes; ++lane) {
          bits |= static_cast<ShuffleArgument<uint32_t>*>(arguments[lane])->in << lane;
        }
        for (int lane = 0; lane < kWarpLanes; ++lane) {
          static_cast<ShuffleArgument<uint32_t>*>(arguments[lane])->out = bits;
        }
      },
      &argument, where);
  return argument.out;
}

inline void LoadMatrix4(uint32_t (&r)[4], const void* row, const Where& where = Where::current()) {
  simt::LoadMatrices argument{row, r};
  simt::CheckShared("LoadMatrix4", row, 16);
  simt::WarpCollective("LoadMatrix4", simt::LoadMatrices::Run, &argument, where);
}
inline void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row, const Where& where = Where::current()) {
  simt::LoadMatrices argument{row, r};
  simt::CheckShared("LoadMatrix4Transposed", row, 16);
  simt::WarpCollective("LoadMatrix4Transposed", simt::LoadMatrices::RunTransposed, &argument, where);
}
inline void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                    const Where& where = Where::current()) {
  simt::MultiplyAdd argument{d, a, {b0, b1}};
  simt::WarpCollective("MmaBf16", simt::MultiplyAdd::Run, &argument, where);
}

inline void CopyAsync16(void* shared, const void* global, bool valid) {
  simt::CopyAsync(shared, global, 16, valid);
}
inline void CommitAsync() {
  simt::CommitAsync();
}
template <int kNewest>
void WaitAsync() {
  simt::WaitAsync(kNewest);
}

inline Words4 Load16(const void* p) {
  simt::CheckAccess("Load16", p, sizeof(Words4));
  Words4 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline void Store16(void* p, Words4 v) {
  simt::CheckAccess("Store16", p, sizeof(Words4));
  std::memcpy(p, &v, sizeof(v));
}
inline Words2 Load8(const void* p) {
  simt::CheckAccess("Load8", p, sizeof(Words2));
  Words2 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline void Store8(void* p, Words2 v) {
  simt::CheckAccess("Store8", p, sizeof(Words2));
  std::memcpy(p, &v, sizeof(v));
}

inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float BitsFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline float ToFloat(Bf16 value) {
  return BitsFloat(static_cast<uint32_t>(value.bits) << 16);
}
inline Bf16 ToBf16(float value) {
  const uint32_t bits = FloatBits(value);
  if (std::isnan(value)) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline uint32_t PackBf16(float low, float high) {
  return ToBf16(low).bits | static_cast<uint32_t>(ToBf16(high).bits) << 16;
}
inline float LowFloat(uint32_t pair) {
  return BitsFloat(pair << 16);
}
inline float HighFloat(uint32_t pair) {
  return BitsFloat(pair & 0xffff0000u);
}

inline float Exp2(float value) {
  return std::exp2(value);
}
inline float Exp(float value) {
  return std::exp(value);
}
inline float Log(float value) {
  return std::log(value);
}
inline float SquareRoot(float value) {
  return std::sqrt(value);
}
inline float Fma(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float Mul(float a, float b) {
  return a * b;
}
inline float Add(float a, float b) {
  return a + b;
}
inline float Sub(float a, float b) {
  return a - b;
}
inline float Divide(float a, float b) {
  return a / b;
}
inline float Max(float a, float b) {
  return std::fmax(a, b);
}
inline float Min(float a, float b) {
  return std::fmin(a, b);
}

inline int AtomicAdd(int* p, int value) {
  const int old = *p;
  *p += value;
  return old;
}

template <class... Parameters, class... Arguments>
const char* Launch(void (*kernel)(Parameters...), const LaunchShape& shape, Stream stream,
                   Arguments... arguments) {
  const auto run = [=] {
    return simt::Run({shape.blocks_x, shape.blocks_y, shape.threads, shape.shared_bytes},
                     [&] { kernel(arguments...); });
  };
  if (stream != nullptr) {
    stream->Push(run);
    return nullptr;
  }
  static std::string error;
  error = run();
  return error.empty() ? nullptr : error.c_str();
}

}  // namespace bfio::worker::gpu
