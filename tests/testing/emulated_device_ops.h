// A device for the CUDA engine without a GPU: memory and kernels are emulated, matrix products are plain
// loops.
//
// Purpose: lets tests run the whole backend. Memory is guarded and filled with poison at first
// (tests/testing/simt/machine.h), so that invalid reads are detected. All queued work runs in Wait
// (tests/testing/simt/stream.h): pinned memory that is changed before its copy has run causes a device error,
// and the target of a copy to the host is poison until then. Faults can be injected. Threads: as
// device_ops.h.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "simt/machine.h"
#include "simt/stream.h"
#include "worker/engine/cuda/device_ops.h"
#include "worker/engine/model/element.h"

namespace bfio::testing {

struct EmulatedDevice {
  int64_t memory_bytes = int64_t{1} << 30;
  // The index of the first call of Wait that fails; all later ones fail too. Negative: none.
  int failing_wait = -1;
  // Numbers of operations of the engine since the start.
  int waits = 0;
  int allocations = 0;
  int replays = 0;
  std::vector<worker::gpu::GemmShape> prepared;
  // Memory in use by all allocations on the device.
  int64_t used_bytes = 0;

  int64_t free_bytes() const { return memory_bytes - used_bytes; }
};

class EmulatedDeviceOps final : public worker::gpu::DeviceOps {
 public:
  // `device` outlives this object.
  explicit EmulatedDeviceOps(EmulatedDevice& device) : device_(device) {}
  ~EmulatedDeviceOps() override {
    for (const auto& block : memory_) device_.used_bytes -= static_cast<int64_t>(block->bytes());
  }

  std::string Describe() const override { return "the emulated device"; }
  absl::StatusOr<worker::gpu::AttentionGrid> FullAttentionGrid(int32_t) override {
    return worker::gpu::AttentionGrid{2, 3, 2};
  }
  worker::gpu::Stream stream() const override { return &stream_; }

  absl::StatusOr<worker::gpu::DeviceMemory> Memory() override {
    return worker::gpu::DeviceMemory{device_.free_bytes(), device_.memory_bytes};
  }
  absl::StatusOr<void*> Allocate(int64_t bytes, absl::string_view what) override {
    if (bytes > device_.free_bytes()) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", what));
    }
    void* const memory = Add(memory_, bytes, what);
    device_.used_bytes += static_cast<int64_t>(memory_.back()->bytes());
    return memory;
  }
  absl::StatusOr<void*> AllocatePinned(int64_t bytes, absl::string_view what) override {
    return Add(pinned_, bytes, what);
  }
  absl::Status CopyIn(void* device, const void* pinned, int64_t bytes) override {
    if (!In(pinned_, pinned, bytes))
      return absl::InvalidArgumentError("a copy from memory that is not pinned");
    const auto* const from = static_cast<const unsigned char*>(pinned);
    std::vector<unsigned char> queued(from, from + bytes);
    copied_from_.emplace_back(from, from + bytes);
    stream_.Push([this, device, from, queued = std::move(queued)]() -> std::string {
      if (std::memcmp(from, queued.data(), queued.size()) != 0) {
        return absl::StrCat("pinned memory (", simt::GuardedMemory::FindContaining(from, 1)->name(),
                            ") was changed before the copy that was queued from it");
      }
      if (!In(memory_, device, static_cast<int64_t>(queued.size()))) return "a copy to no device memory";
      std::memcpy(device, from, queued.size());
      return "";
    });
    return absl::OkStatus();
  }
  absl::Status CopyOut(void* pinned, const void* device, int64_t bytes) override {
    if (!In(pinned_, pinned, bytes)) return absl::InvalidArgumentError("a copy to memory that is not pinned");
    // Not poisoned if a queued copy may still read this memory.
    const auto* const begin = static_cast<const unsigned char*>(pinned);
    if (std::none_of(copied_from_.begin(), copied_from_.end(),
                     [&](const auto& from) { return from.first < begin + bytes && begin < from.second; })) {
      std::memset(pinned, simt::kPoison, static_cast<size_t>(bytes));
    }
    stream_.Push([this, pinned, device, bytes]() -> std::string {
      if (!In(memory_, device, bytes)) return "a copy from no device memory";
      std::memcpy(pinned, device, static_cast<size_t>(bytes));
      return "";
    });
    return absl::OkStatus();
  }
  absl::Status FillZero(void* device, int64_t bytes) override {
    stream_.Push([this, device, bytes]() -> std::string {
      if (!In(memory_, device, bytes)) return "zeros for no device memory";
      std::memset(device, 0, static_cast<size_t>(bytes));
      return "";
    });
    return absl::OkStatus();
  }

  absl::Status Prepare(const worker::gpu::GemmShape& shape, absl::Span<const worker::gpu::Bf16* const>,
                       const worker::gpu::Bf16*, void* y) override {
    for (const auto& known : device_.prepared) {
      if (known == shape) return absl::OkStatus();
    }
    device_.prepared.push_back(shape);
    if (absl::Status status = Finish(); !status.ok()) return status;
    // Trying out products overwrites y.
    std::memset(y, 0, static_cast<size_t>(shape.rows) * shape.outputs * (shape.fp32_out ? 4 : 2));
    return absl::OkStatus();
  }
  absl::Status Multiply(const worker::gpu::GemmShape& shape, const worker::gpu::Bf16* x,
                        const worker::gpu::Bf16* weight, void* y) override {
    bool prepared = false;
    for (const auto& known : device_.prepared) prepared = prepared || known == shape;
    if (!prepared) return absl::InternalError("a product that was not prepared");
    for (const void* operand : std::initializer_list<const void*>{x, weight, y}) {
      if (!Aligned(operand)) return absl::InternalError("an operand that is not aligned");
    }
    stream_.Push([=] {
      Product(shape, x, weight, y);
      return std::string();
    });
    return absl::OkStatus();
  }

  absl::StatusOr<int> Record(std::function<absl::Status()> work) override {
    absl::Status status;
    records_.push_back(stream_.Record([&] { status = work(); }));
    if (!status.ok()) return status;
    return static_cast<int>(records_.size()) - 1;
  }
  absl::Status Replay(int record) override {
    ++device_.replays;
    for (const simt::Work& work : records_[static_cast<size_t>(record)]) stream_.Push(work);
    return absl::OkStatus();
  }
  absl::Status Wait(absl::Duration) override {
    if (device_.failing_wait >= 0 && device_.waits >= device_.failing_wait) {
      return absl::UnavailableError("cudaEventQuery: the emulated device fell off the bus");
    }
    ++device_.waits;
    return Finish();
  }
  absl::StatusOr<double> Time(int record) override {
    absl::Status status = Replay(record);
    if (status.ok()) status = Finish();
    if (!status.ok()) return status;
    return 1.0;
  }

  // Runs the queued work; not counted as a wait.
  absl::Status Finish() {
    const std::string error = stream_.Run();
    copied_from_.clear();
    return error.empty() ? absl::OkStatus() : absl::UnavailableError(error);
  }

 private:
  using Blocks = std::vector<std::unique_ptr<simt::GuardedMemory>>;

  void* Add(Blocks& blocks, int64_t bytes, absl::string_view what) {
    ++device_.allocations;
    const auto size = static_cast<size_t>(bytes + 15) / 16 * 16;
    return blocks.emplace_back(std::make_unique<simt::GuardedMemory>(std::string(what), size))->data();
  }
  static bool In(const Blocks& blocks, const void* p, int64_t bytes) {
    return std::any_of(blocks.begin(), blocks.end(),
                       [&](const auto& block) { return block->Contains(p, static_cast<size_t>(bytes)); });
  }
  static void Product(const worker::gpu::GemmShape& shape, const worker::gpu::Bf16* x,
                      const worker::gpu::Bf16* weight, void* y) {
    std::vector<float> wide(static_cast<size_t>(shape.inputs));
    for (int32_t row = 0; row < shape.rows; ++row) {
      for (int32_t i = 0; i < shape.inputs; ++i)
        wide[i] = worker::FromBf16(x[int64_t{row} * shape.inputs + i].bits);
      for (int32_t out = 0; out < shape.outputs; ++out) {
        const worker::gpu::Bf16* const w = weight + int64_t{out} * shape.inputs;
        float sum = 0;
        for (int32_t i = 0; i < shape.inputs; ++i) sum += wide[i] * worker::FromBf16(w[i].bits);
        const int64_t at = int64_t{row} * shape.outputs + out;
        if (shape.fp32_out) {
          static_cast<float*>(y)[at] = sum;
        } else {
          static_cast<worker::gpu::Bf16*>(y)[at] = {worker::ToBf16(sum)};
        }
      }
    }
  }
  // Alignment within the buffer, because on a device every allocation begins at a multiple of 256.
  static bool Aligned(const void* operand) {
    const simt::GuardedMemory* const memory = simt::GuardedMemory::FindContaining(operand, 1);
    return memory != nullptr && (static_cast<const unsigned char*>(operand) - memory->data()) % 256 == 0;
  }

  EmulatedDevice& device_;
  Blocks memory_, pinned_;
  mutable CUstream_st stream_;
  // Pinned memory that queued copies read.
  std::vector<std::pair<const unsigned char*, const unsigned char*>> copied_from_;
  std::vector<std::vector<simt::Work>> records_;
};

}  // namespace bfio::testing
