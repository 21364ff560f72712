#include "common/telemetry/log_fields.h"

#include <utility>

namespace bfio {

thread_local const ScopedLogFields* ScopedLogFields::innermost_ = nullptr;

ScopedLogFields::ScopedLogFields(std::vector<LogField> fields)
    : fields_(std::move(fields)), outer_(innermost_) {
  if (outer_ != nullptr) fields_.insert(fields_.begin(), outer_->fields_.begin(), outer_->fields_.end());
  innermost_ = this;
}

absl::Span<const LogField> ScopedLogFields::Current() {
  if (innermost_ == nullptr) return {};
  return innermost_->fields_;
}

}  // namespace bfio
