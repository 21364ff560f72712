// The option that a misspelt name probably means; for messages about unknown flags and keys. A pure function;
// any thread.
#ifndef BFIO_COMMON_CONFIG_NEAREST_OPTION_H_
#define BFIO_COMMON_CONFIG_NEAREST_OPTION_H_

#include <string>

#include "absl/strings/string_view.h"
#include "common/config/options.h"

namespace bfio {

// Empty if no name of `options` begins with `name` or differs from it by a few characters only.
std::string NearestOption(absl::string_view name, const OptionTable& options);

}  // namespace bfio

#endif  // BFIO_COMMON_CONFIG_NEAREST_OPTION_H_
