// The part of NVML that bfio uses, declared here so that the build needs neither headers nor library. The C
// interface of libnvidia-ml.so.1 (CUDA 11 to 13; NVIDIA keeps it stable, and new versions of a function get a
// new name). Threads: any.
#pragma once

extern "C" {

struct BfioNvmlFieldValue {
  unsigned int field_id;
  unsigned int scope_id;
  long long timestamp;
  long long latency_us;
  int value_type;
  int result;
  union {
    double as_double;
    unsigned int as_uint;
    unsigned long as_ulong;
    unsigned long long as_ulonglong;
  } value;
};

using NvmlDevice = void*;
using NvmlInit = int();
using NvmlShutdown = int();
using NvmlErrorString = const char*(int result);
using NvmlHandleByPciBusId = int(const char* id, NvmlDevice* device);
using NvmlHandleByIndex = int(unsigned int index, NvmlDevice* device);
using NvmlUuid = int(NvmlDevice device, char* uuid, unsigned int length);
// Millijoules since the driver was loaded.
using NvmlTotalEnergy = int(NvmlDevice device, unsigned long long* millijoules);
// Milliwatts; on recent devices the mean over the last second.
using NvmlPowerUsage = int(NvmlDevice device, unsigned int* milliwatts);
using NvmlFieldValues = int(NvmlDevice device, int count, BfioNvmlFieldValue* values);

}  // extern "C"

static_assert(sizeof(BfioNvmlFieldValue) == 40);

inline constexpr int kNvmlSuccess = 0;
inline constexpr int kNvmlInvalidArgument = 2;
inline constexpr int kNvmlNotSupported = 3;
inline constexpr int kNvmlNotFound = 6;
inline constexpr unsigned int kNvmlFieldPowerInstant = 186;
inline constexpr int kNvmlValueUint = 1;
