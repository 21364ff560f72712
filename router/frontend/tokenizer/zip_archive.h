// A zip archive of a few files, uncompressed.
//
// Purpose: the form in which gateways fetch a tokenizer. Pure; any thread.
#ifndef BFIO_ROUTER_FRONTEND_TOKENIZER_ZIP_ARCHIVE_H_
#define BFIO_ROUTER_FRONTEND_TOKENIZER_ZIP_ARCHIVE_H_

#include <string>
#include <utility>
#include <vector>

namespace bfio::router {

// An archive of these names and contents, in this order; the same input gives the same bytes. REQUIRES: names
// are short, and the total is below 4 GiB, the limit of the format.
std::string ZipArchive(const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_TOKENIZER_ZIP_ARCHIVE_H_
