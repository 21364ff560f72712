// A libnvidia-ml.so.1 for tests: one device at 0000:17:00.0, index 0, controlled by the environment variables
// FAKE_NVML_*.
//
// Purpose: tests the meter through the dynamic linker, as in production. Each variable holds a number, or
// "error N" for NVML's result N; one that is not set is "error 3", not supported. FAKE_NVML_WATTS alone gives
// a counter that grows with the clock. Built twice: with -DFAKE_NVML_POOR it lacks most functions.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "worker/energy/nvml_api.h"

namespace {

int device = 0;
int users = 0;

// Reads a variable into `value`. Returns NVML's result; `value` is set only on success.
int Read(const char* variable, unsigned long long& value) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return kNvmlNotSupported;
  if (std::strncmp(text, "error ", 6) == 0) return std::atoi(text + 6);
  value = std::strtoull(text, nullptr, 10);
  return kNvmlSuccess;
}

int Known(NvmlDevice handle) {
  return users > 0 && handle == &device ? kNvmlSuccess : kNvmlInvalidArgument;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  unsigned long long ignored = 0;
  const int result = std::getenv("FAKE_NVML_INIT") == nullptr ? 0 : Read("FAKE_NVML_INIT", ignored);
  if (result == kNvmlSuccess) ++users;
  return result;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, NvmlDevice* out) {
  if (std::strcmp(id, "0000:17:00.0") != 0) return kNvmlNotFound;
  *out = &device;
  return kNvmlSuccess;
}

#ifndef FAKE_NVML_POOR

int nvmlShutdown() {
  --users;
  return kNvmlSuccess;
}

const char* nvmlErrorString(int result) {
  return result == kNvmlNotFound ? "Not Found" : result == kNvmlNotSupported ? "Not Supported" : "Some Error";
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, NvmlDevice* out) {
  if (index > 0) return kNvmlInvalidArgument;
  *out = &device;
  return kNvmlSuccess;
}

int nvmlDeviceGetUUID(NvmlDevice handle, char* uuid, unsigned int length) {
  if (int result = Known(handle); result != kNvmlSuccess) return result;
  std::snprintf(uuid, length, "GPU-fake");
  return kNvmlSuccess;
}

int nvmlDeviceGetTotalEnergyConsumption(NvmlDevice handle, unsigned long long* millijoules) {
  if (int result = Known(handle); result != kNvmlSuccess) return result;
  unsigned long long watts = 0;
  if (Read("FAKE_NVML_WATTS", watts) == kNvmlSuccess) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = watts * (static_cast<unsigned long long>(now.tv_sec) * 1000 + now.tv_nsec / 1000000);
    return kNvmlSuccess;
  }
  return Read("FAKE_NVML_ENERGY_MJ", *millijoules);
}

int nvmlDeviceGetPowerUsage(NvmlDevice handle, unsigned int* milliwatts) {
  if (int result = Known(handle); result != kNvmlSuccess) return result;
  unsigned long long value = 0;
  const int result = Read("FAKE_NVML_POWER_MW", value);
  *milliwatts = static_cast<unsigned int>(value);
  return result;
}

int nvmlDeviceGetFieldValues(NvmlDevice handle, int count, BfioNvmlFieldValue* values) {
  if (int result = Known(handle); result != kNvmlSuccess) return result;
  for (int i = 0; i < count; ++i) {
    unsigned long long value = 0;
    values[i].result = values[i].field_id == kNvmlFieldPowerInstant ? Read("FAKE_NVML_INSTANT_MW", value) : 2;
    values[i].value_type = kNvmlValueUint;
    values[i].value.as_uint = static_cast<unsigned int>(value);
  }
  return kNvmlSuccess;
}

#endif

}  // extern "C"
