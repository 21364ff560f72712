#include "worker/energy/nvml_meter.h"

#include <dlfcn.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/energy/nvml_api.h"

namespace bfio::worker {
namespace {

constexpr double kMilli = 1e-3;
// Sampling interval for integrated power: devices refresh it about ten times a second.
constexpr absl::Duration kPowerSampling = absl::Milliseconds(100);

// The loaded library, initialised while this object lives.
class Nvml {
 public:
  static absl::StatusOr<std::unique_ptr<Nvml>> Load(const std::string& library);
  ~Nvml() {
    if (initialised_) shutdown_();
    dlclose(handle_);
  }

  absl::Status StatusOf(int result, absl::string_view what) const {
    if (result == kNvmlSuccess) return absl::OkStatus();
    const char* text = error_string == nullptr ? nullptr : error_string(result);
    const std::string message =
        absl::StrCat(what, ": ", text == nullptr ? absl::StrCat("NVML error ", result) : text);
    switch (result) {
      case kNvmlNotSupported: return absl::UnimplementedError(message);
      case kNvmlNotFound:
      case kNvmlInvalidArgument: return absl::NotFoundError(message);
      default: return absl::UnavailableError(message);
    }
  }

  // Null if the library lacks it.
  NvmlErrorString* error_string = nullptr;
  NvmlHandleByPciBusId* handle_by_pci = nullptr;
  NvmlHandleByIndex* handle_by_index = nullptr;
  NvmlUuid* uuid = nullptr;
  NvmlTotalEnergy* total_energy = nullptr;
  NvmlPowerUsage* power_usage = nullptr;
  NvmlFieldValues* field_values = nullptr;

 private:
  explicit Nvml(void* handle) : handle_(handle) {}

  template <typename F>
  void Find(const char* name, F*& out) const {
    out = reinterpret_cast<F*>(dlsym(handle_, name));
  }

  void* const handle_;
  NvmlShutdown* shutdown_ = nullptr;
  bool initialised_ = false;
};

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Load(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return absl::NotFoundError(absl::StrCat("cannot load NVML: ", why == nullptr ? library.c_str() : why));
  }
  std::unique_ptr<Nvml> nvml(new Nvml(handle));
  NvmlInit* init = nullptr;
  nvml->Find("nvmlInit_v2", init);
  nvml->Find("nvmlShutdown", nvml->shutdown_);
  nvml->Find("nvmlErrorString", nvml->error_string);
  nvml->Find("nvmlDeviceGetHandleByPciBusId_v2", nvml->handle_by_pci);
  nvml->Find("nvmlDeviceGetHandleByIndex_v2", nvml->handle_by_index);
  nvml->Find("nvmlDeviceGetUUID", nvml->uuid);
  nvml->Find("nvmlDeviceGetTotalEnergyConsumption", nvml->total_energy);
  nvml->Find("nvmlDeviceGetPowerUsage", nvml->power_usage);
  nvml->Find("nvmlDeviceGetFieldValues", nvml->field_values);
  if (init == nullptr || nvml->shutdown_ == nullptr) {
    return absl::UnimplementedError(absl::StrCat(library, " lacks nvmlInit_v2 or nvmlShutdown"));
  }
  BFIO_RETURN_IF_ERROR(nvml->StatusOf(init(), "nvmlInit_v2"));
  nvml->initialised_ = true;
  return nvml;
}

class NvmlMeter final : public EnergyMeter {
 public:
  NvmlMeter(std::unique_ptr<Nvml> nvml, NvmlDevice device, std::string name)
      : nvml_(std::move(nvml)), device_(device), name_(std::move(name)) {}

  // Determines what the device can report.
  absl::Status Begin() {
    has_counter_ = nvml_->total_energy != nullptr && Counter().ok();
    return has_counter_ ? absl::OkStatus() : Watts().status();
  }

  const std::string& device() const override { return name_; }
  absl::Duration sampling() const override {
    return has_counter_ ? absl::InfiniteDuration() : kPowerSampling;
  }
  absl::StatusOr<double> Joules() override { return has_counter_ ? Counter() : Integrated(); }

 private:
  absl::StatusOr<double> Counter() const {
    unsigned long long millijoules = 0;
    const int result = nvml_->total_energy(device_, &millijoules);
    if (result != kNvmlSuccess) return nvml_->StatusOf(result, "nvmlDeviceGetTotalEnergyConsumption");
    return kMilli * static_cast<double>(millijoules);
  }

  absl::StatusOr<double> Watts() const {
    if (nvml_->field_values != nullptr) {
      BfioNvmlFieldValue field = {};
      field.field_id = kNvmlFieldPowerInstant;
      const int result = nvml_->field_values(device_, 1, &field);
      if (result == kNvmlSuccess && field.result == kNvmlSuccess && field.value_type == kNvmlValueUint) {
        return kMilli * field.value.as_uint;
      }
    }
    if (nvml_->power_usage == nullptr)
      return absl::UnimplementedError("the NVML library reports neither energy nor power");
    unsigned int milliwatts = 0;
    const int result = nvml_->power_usage(device_, &milliwatts);
    if (result != kNvmlSuccess) return nvml_->StatusOf(result, "nvmlDeviceGetPowerUsage");
    return kMilli * milliwatts;
  }

  absl::StatusOr<double> Integrated() {
    const absl::StatusOr<double> watts = Watts();
    const absl::Time now = MonotonicNow();
    if (!watts.ok()) {
      before_.reset();  // the energy drawn meanwhile is unknown
      return watts.status();
    }
    if (before_) joules_ += 0.5 * (*before_ + *watts) * absl::ToDoubleSeconds(now - at_);
    before_ = *watts;
    at_ = now;
    return joules_;
  }

  const std::unique_ptr<Nvml> nvml_;
  const NvmlDevice device_;
  const std::string name_;
  bool has_counter_ = true;
  // Used when the device has no energy counter.
  double joules_ = 0;
  std::optional<double> before_;
  absl::Time at_;
};

absl::StatusOr<NvmlDevice> FindDevice(const Nvml& nvml, absl::string_view name) {
  NvmlDevice device = nullptr;
  const std::string text(name);
  unsigned int index = 0;
  int result;
  if (!text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
      absl::SimpleAtoi(text, &index)) {
    if (nvml.handle_by_index == nullptr)
      return absl::UnimplementedError("this NVML library cannot select devices by index");
    result = nvml.handle_by_index(index, &device);
  } else {
    if (nvml.handle_by_pci == nullptr)
      return absl::UnimplementedError("this NVML library cannot select devices by PCI bus id");
    result = nvml.handle_by_pci(text.c_str(), &device);
  }
  BFIO_RETURN_IF_ERROR(nvml.StatusOf(result, absl::StrCat("device '", name, "'")));
  return device;
}

std::string NameOf(const Nvml& nvml, NvmlDevice device, absl::string_view given) {
  char uuid[96] = {};
  if (nvml.uuid != nullptr && nvml.uuid(device, uuid, sizeof(uuid) - 1) == kNvmlSuccess && uuid[0] != '\0')
    return uuid;
  return std::string(given);
}

}  // namespace

absl::StatusOr<std::unique_ptr<EnergyMeter>> MakeNvmlMeter(absl::string_view device,
                                                           const std::string& library) {
  BFIO_ASSIGN_OR_RETURN(auto nvml, Nvml::Load(library));
  BFIO_ASSIGN_OR_RETURN(const auto handle, FindDevice(*nvml, device));
  std::string name = NameOf(*nvml, handle, device);
  auto meter = std::make_unique<NvmlMeter>(std::move(nvml), handle, std::move(name));
  BFIO_RETURN_IF_ERROR(meter->Begin());
  return meter;
}

}  // namespace bfio::worker
