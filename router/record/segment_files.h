// The segments of a decision log on disk: PATH.000001 and so on.
//
// Purpose: lists and names them. Threads: any; other processes may use the folder.
#ifndef BFIO_ROUTER_RECORD_SEGMENT_FILES_H_
#define BFIO_ROUTER_RECORD_SEGMENT_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace bfio::record {

struct SegmentFile {
  std::string path;
  uint64_t number = 0;
  int64_t bytes = 0;
};

// Sorted by number. Empty when there are none, or when the folder cannot be read.
std::vector<SegmentFile> ListSegments(const std::string& path);

}  // namespace bfio::record

#endif  // BFIO_ROUTER_RECORD_SEGMENT_FILES_H_
