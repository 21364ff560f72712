// CRC-32C (Castagnoli): detects damaged blocks. Pure. Any thread.
#ifndef BFIO_ROUTER_RECORD_CRC32C_H_
#define BFIO_ROUTER_RECORD_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace bfio::record {

uint32_t Crc32c(absl::string_view data);

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_CRC32C_H_
